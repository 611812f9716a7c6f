"""Results: plain JSON values, the identity of their cases, reading files of them, and comparing two.

Nothing here needs torch or an engine; ``zerobench.bench`` makes results from measurements.
"""

from typing import Any

#: A JSON object.
Json = dict[str, Any]
