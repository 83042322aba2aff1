"""Trains a small Llama on text of this machine."""
