"""The console script, and `python -m harness`: a Ctrl-C counts as one from the first line on."""

import sys


def main() -> None:
    """Load the command line and hand over to it."""
    try:
        from harness import cli  # noqa: PLC0415 - its imports take long enough to be interrupted

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
