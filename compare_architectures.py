"""Same prompts and seeds through every architecture; `python compare_architectures.py --help`
lists the options.
"""

import sys

from outrider.compare.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
