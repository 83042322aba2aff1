"""Extracts the target's hidden states for every sample."""
