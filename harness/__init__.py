"""Runs long machine-learning work from a plan, and loses none of it."""

__version__ = "0.1.0"
