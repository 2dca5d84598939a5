"""The emulated link of outrider/link.py as a benchmark's command: python -m benchmarks.link --to 127.0.0.1:50051 --delay_ms 20"""

from __future__ import annotations

import sys

from outrider.link import Shape, ShapedLink, main, shaped_link

__all__ = ["Shape", "ShapedLink", "main", "shaped_link"]

if __name__ == "__main__":
    sys.exit(main())
