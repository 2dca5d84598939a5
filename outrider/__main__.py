"""`python -m outrider`: the same as main.py, for an installed wheel."""

import sys

from outrider.cli import main

if __name__ == "__main__":
    sys.exit(main())
