"""The checkout that the suites belong to: tests of its pages, reports and sources start from here."""

from __future__ import annotations

from pathlib import Path

import zerobench

#: The folder that holds the package; in a checkout, its root.
ROOT = Path(zerobench.__file__).parents[1]
