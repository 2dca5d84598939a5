"""Same prompts and seeds through every architecture; `python compare_architectures.py --help`
lists the options.
"""

import sys

from outrider.measure.commands import compare

if __name__ == "__main__":
    sys.exit(compare())
