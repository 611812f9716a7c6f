"""``python -m zerobench`` is ``zerobench``."""

import sys

from zerobench.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
