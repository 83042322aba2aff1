"""Measures a drafter by decoding with it."""
