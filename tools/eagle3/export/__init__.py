"""Writes a drafter in the form that a serving engine loads."""
