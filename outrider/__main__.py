"""The command `outrider`, also `python -m outrider` and main.py. Ctrl-C gets one line, even while
packages are imported, which takes a second or more.
"""

import os
import sys

INTERRUPTED, UNREAD = 130, 141


def main() -> int:
    """Run the command line of this process. Returns its exit code."""
    try:
        from outrider.cli import main as run

        return run()
    except BrokenPipeError:  # as behind `outrider help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for buffered output
        return UNREAD
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
