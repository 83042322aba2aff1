"""Frees the disk of what is named and no longer needed."""
