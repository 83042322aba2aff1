"""Trains the drafter on extracted features."""
