"""The command `outrider`, also `python -m outrider` and main.py. Ctrl-C prints one line and no
traceback, even during imports, which take a second or more.
"""

import os
import sys

INTERRUPTED, UNREAD = 130, 141


def main() -> int:
    """Run this process's command line. Returns the exit code."""
    try:
        from outrider.cli import main as run

        return run()
    except BrokenPipeError:  # as in `outrider help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards buffered output
        return UNREAD
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
