"""Outrider's command line; `python main.py --help` lists its commands."""

import sys

from outrider.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
