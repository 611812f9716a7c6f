"""Results: plain JSON values, who their cases are, how files of them are read, and what differs between two.

Nothing here needs torch or an engine; ``zerobench.bench`` makes results of measurements.
"""

from typing import Any

#: A JSON object.
Json = dict[str, Any]
