"""``python -m zerobench`` is ``zerobench``."""

import sys

from zerobench.cli import main

if __name__ == "__main__":
    sys.exit(main())
