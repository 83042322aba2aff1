"""Turns conversations into a sample set."""
