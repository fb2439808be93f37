"""``python -m cuda_pool`` is ``cuda-pool``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
