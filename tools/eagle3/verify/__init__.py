"""Verifies a feature set, every sample of it, and repairs what is damaged."""
