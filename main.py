"""Outrider's command line; `python main.py --help` lists its roles."""

import sys

from outrider.cli import main

if __name__ == "__main__":
    sys.exit(main())
