"""Counts the tokens that are drafted and picks the draft vocabulary."""
