"""The checkout that the suites belong to: tests of its pages, reports and sources start from here."""

from __future__ import annotations

import os
from pathlib import Path

import zerobench

#: The folder that holds the package; in a checkout, its root.
ROOT = Path(zerobench.__file__).parents[1]


def front_of_path(root: Path) -> dict[str, str]:
    """The variable with which a child process imports the packages of ``root``, and else those of this process."""
    rest = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(root), *([rest] if rest else [])])}
