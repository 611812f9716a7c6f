"""The page of a measurement."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from zerobench.results import Json

#: The plain operation beside which each of a checkpoint's is read.
_BESIDE = {"save": "plain write", "load": "plain read", "asynchronous save: stall": "copy"}
_TITLE = "# Checkpoints beside plain files"
_HOW = (
    "Medians of {rounds} rounds, with the quartiles. In each round every operation ran once on the same disk, in one "
    "order, and in the next round in the other. Writes end when the bytes are on the drive. Before a read the system "
    "was asked to drop its copy of the file. Seconds are those of the slowest rank."
)


def render(found: Json) -> str:
    """Markdown of the numbers."""
    environment, seconds, world = found["environment"], found["seconds"], found["world"]
    total, rounds = found["bytes"] * world, len(seconds["save"])
    setting = (
        f"{environment['cpu']}, torch {environment['torch']}, {world} ranks. A model of size {found['model']} in bf16 "
        f"with AdamW at stage 2: {total / 1e6:,.0f} MB, {found['bytes'] / 1e6:,.0f} MB of each rank."
    )
    head = "| operation | seconds | quartiles | GB/s | beside | share of its bandwidth | quartiles |"
    how = _HOW.format(rounds=rounds)
    lines = [_TITLE, "", setting, "", how, "", head, "| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [_row(name, values, seconds, total) for name, values in seconds.items()]
    lines += ["", *_memory(found)]
    return "\n".join(lines) + "\n"


def _row(name: str, values: Sequence[float], seconds: Json, total: int) -> str:
    beside = _BESIDE.get(name)
    cells = [name, *_spread(values, ".4g"), f"{total / statistics.median(values) / 1e9:.2f}", beside or ""]
    ratios = [plain / own for plain, own in zip(seconds[beside], values, strict=True)] if beside else []
    return f"| {' | '.join([*cells, *(_spread(ratios, '.2f') if ratios else ('', ''))])} |"


def _spread(values: Sequence[float], style: str) -> tuple[str, str]:
    """The median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return format(middle, style), f"{format(low, style)} to {format(high, style)}"


def _memory(found: Json) -> list[str]:
    return [
        "Host memory that torch allocates at the peak, above what training holds, on the rank with most of it:",
        "",
        "| operation | bytes | shares of a rank's shard |",
        "| --- | --- | --- |",
        *(f"| {name} | {size:,} | {size / found['bytes']:.2f} |" for name, size in found["peaks"].items()),
    ]
