"""Tables: one for each question that a report answers, with a row for every case that it concerns."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from zerobench.report.frame import SPLIT, TOTAL, Frames
from zerobench.report.machine_tables import tables_beside
from zerobench.report.table import UNKNOWN, Column, Table, beside, is_known, known, number, scaled
from zerobench.results import Json
from zerobench.results.identity import COMPUTE_ONLY
from zerobench.verdict import RAN

RIGHT, MEMORY, TRAFFIC, TIME = (
    "Right?",
    "Memory on each rank, in bytes",
    "Traffic of a step, in bytes",
    "Time of a step",
)
OFFLOAD = "Offload in a step, in bytes"
MEMORY_NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "peak_parameters": "whole at once",
    "peak": "peak",
    "reserved": "reserved",
    "host": "host",
    "pinned": "pinned",
    "file": "files",
}
_OFFLOAD_NAMES = {"to_host": "to host", "to_device": "to device", "read": "read", "written": "written"}
_EXACT = "=: just what the closed form predicts, on every rank; a number in brackets: what it predicts instead."


def make_tables(frames: Frames) -> list[Table]:
    """Every table that has a row, in the order of the report."""
    every = [_right(frames), _memory(frames), _traffic(frames), _time(frames), _offload(frames)]
    return [table for table in [*every, *tables_beside(frames.results)] if table.rows]


def _names(frames: Frames) -> list[Column]:
    return [
        Column(name, text=True)
        for name in ("subject", "stage", *(str(each).replace("_", " ") for each in frames.knobs))
    ]


def _name(frames: Frames, case: int) -> list[str]:
    subject, stage = frames.cases["subject"][case], frames.cases["stage"][case]
    return [str(subject), UNKNOWN if pd.isna(stage) else str(stage), *map(str, frames.knobs.iloc[case])]


def _cases(frames: Frames, yardstick: bool = False) -> Iterator[tuple[int, Json]]:
    """Each case's number and values; compute-only computes nothing that could be right, and holds and moves nothing."""
    for case, line in enumerate(frames.cases.to_dict("records")):
        if yardstick or line["subject"] != COMPUTE_ONLY:
            yield case, {str(name): value for name, value in line.items()}


def _table(frames: Frames, title: str, columns: list[Column], lines: list[list[str]], legend: list[str]) -> Table:
    heads, cells = known([*_names(frames), *columns], lines)
    return Table(title, heads, cells, legend)


def _missing(verdict: str, width: int) -> list[str]:
    """The cells of a case that was not measured: what became of it instead."""
    return [verdict if verdict not in RAN else "not measured", *[UNKNOWN] * (width - 1)]


def _right(frames: Frames) -> Table:
    columns = [
        Column("right?", text=True),
        Column("error", "less"),
        Column("budget used", "less"),
        Column("first loss"),
        Column("last loss"),
    ]
    lines = [[*_name(frames, case), *_right_cells(line)] for case, line in _cases(frames)]
    return _table(frames, RIGHT, columns, lines, _right_legend(frames))


def _right_cells(line: Json) -> list[str]:
    if line["verdict"] not in RAN:
        return _missing(line["verdict"], 5)
    return [
        _rightness(line),
        number(line["error"], ".3g"),
        number(line["budget_used"], ".0%"),
        number(line["first_loss"], ".4f"),
        number(line["last_loss"], ".4f"),
    ]


def _rightness(line: Json) -> str:
    """How right a case is that ran."""
    if line["verdict"] == "wrong":
        return "WRONG"
    if not line["judged"]:
        return "not judged"
    return "bitwise" if line["bitwise"] else "within budget"


def _right_legend(frames: Frames) -> list[str]:
    lines = []
    if frames.cases["bitwise"].eq(True).any():
        lines.append("bitwise: every loss and norm and the final parameters have the bits of the canonical trainer.")
    budget = frames.results["budget"]
    if budget:
        lines.append(
            f"error: of the parameters after step {budget['step']} against a float64 run; the budget is "
            f"{budget['times']:g} times that of {budget['yardstick']}, {number(budget['error'], '.3g')}."
        )
    elif frames.cases["budget_used"].notna().any():
        lines.append(
            "error: of the parameters after the last step against a float64 run; the budget is each file's own."
        )
    return lines


def _memory(frames: Frames) -> Table:
    lines = []
    for case, line in _cases(frames):
        ledger = frames.ledger(case, "memory")
        cells = [beside(ledger.get(name, {}).get("bytes")) for name in MEMORY_NAMES]
        lines.append([*_name(frames, case), *(cells if ledger else _missing(line["verdict"], len(cells)))])
    legend = {
        "": f"Between steps, on the rank that holds most. {_EXACT}",
        "peak_parameters": "whole at once: the most bytes behind the model's parameters at any collective of a step.",
        "peak": "peak: what the allocator gave to subject and step at the worst moment of a step.",
        "reserved": "reserved: the most that CUDA's caching allocator took from the device.",
        "host": "host, files: states kept there, which are not among those on the device.",
    }
    present = {"", *(name for (_, part), ledger in frames.largest.items() if part == "memory" for name in ledger)}
    columns = [Column(title, "less") for title in MEMORY_NAMES.values()]
    return _table(frames, MEMORY, columns, lines, [text for name, text in legend.items() if name in present])


def _traffic(frames: Frames) -> Table:
    lines = []
    for case, line in _cases(frames):
        ledger = frames.ledger(case, "traffic")
        for name, numbers in ledger.items():
            cells = [beside(numbers.get(each)) for each in ("calls", "sent", "received")]
            wire = number(line["wire"], ".3f") if name == TOTAL else UNKNOWN
            lines.append([*_name(frames, case), name, *cells, wire])
        if not ledger:
            lines.append([*_name(frames, case), *_missing(line["verdict"], 5)])
    names = ("calls", "sent", "received", "wire / received")
    legend = [f"Logical bytes, of the rank with most. {_EXACT}"]
    if frames.cases["wire"].notna().any():
        legend.append(
            "wire / received: bytes that crossed loopback, TCP's headers and other processes' bytes among them, "
            "over those that all ranks received."
        )
    columns = [Column("collective", text=True), *(Column(name, "less") for name in names)]
    return _table(frames, TRAFFIC, columns, lines, legend)


def _time(frames: Frames) -> Table:
    columns = [
        Column("step, ms", "less"),
        Column("IQR, ms", "less"),
        Column("x compute", "less"),
        *(Column(f"{name}, ms", "less") for name in SPLIT),
        Column("samples/s", "more"),
        Column("tokens/s", "more"),
        Column("FLOP utilisation", "more"),
    ]
    lines = [[*_name(frames, case), *_time_cells(line, len(columns))] for case, line in _cases(frames, yardstick=True)]
    legend = ["step: the median over rounds of the slowest rank; IQR: between its quartiles."]
    if frames.cases["ratio"].notna().any():
        legend.append(
            "x compute: the median of the rounds' ratios to compute-only, the same step without communication."
        )
    if frames.cases["communication"].notna().any():
        legend.append(
            "forward, backward, optimizer: at most what compute-only takes for them in the same round; communication: "
            "all beyond that, which computation does not hide. Medians, each by itself: they need not add up."
        )
    if frames.results["peaks"]:
        legend.append(
            f"FLOP utilisation: of what one rank reached in a matrix multiplication in the same run, "
            f"{_peaks(frames.results['peaks'])}."
        )
    return _table(frames, TIME, columns, lines, legend)


def _peaks(peaks: list[Json]) -> str:
    """The rates of each dtype: from the lowest to the highest, if several runs have measured one."""
    rates: dict[str, list[float]] = {}
    for each in peaks:
        rates.setdefault(each["dtype"], []).append(each["flops_per_second"])
    ends = {dtype: dict.fromkeys(scaled(end(some), 1e9) for end in (min, max)) for dtype, some in rates.items()}
    return ", ".join(f"{' to '.join(each)} GFLOP/s in {dtype}" for dtype, each in ends.items())


def _time_cells(line: Json, width: int) -> list[str]:
    if not is_known(line["seconds"]):
        return _missing(line["verdict"], width)
    return [
        scaled(line["seconds"], 1e-3),
        scaled(line["spread"], 1e-3),
        number(line["ratio"], ".2f"),
        *(scaled(line[name], 1e-3) for name in SPLIT),
        scaled(line["samples_per_second"], 1),
        number(line["tokens_per_second"], ",.0f"),
        number(line["utilisation"], ".1%"),
    ]


def _offload(frames: Frames) -> Table:
    lines = []
    for case, line in _cases(frames):
        ledger = frames.ledger(case, "offload")
        if ledger:
            cells = [beside(ledger.get(name, {}).get("bytes")) for name in _OFFLOAD_NAMES]
            lines.append([*_name(frames, case), str(line["offload"]), *cells])
        elif line["verdict"] not in RAN:
            lines.append([*_name(frames, case), *_missing(line["verdict"], 1 + len(_OFFLOAD_NAMES))])
    columns = [Column("offload", text=True), *(Column(title, "less") for title in _OFFLOAD_NAMES.values())]
    offloads = any(part == "offload" for _, part in frames.largest)
    legend = [f"On the rank with most. {_EXACT}"]
    if not frames.results["environment"].get("gpu"):
        legend.append(
            "Device and host are one memory on this machine: what would be on the host is counted as if it were."
        )
    return _table(frames, OFFLOAD, columns, lines if offloads else [], legend)
