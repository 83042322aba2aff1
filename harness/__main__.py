"""Lets `python -m harness` be the console script."""

from harness.cli import main

main()
