"""The tables of measurements beside the cases: collectives, kernels, and the largest models that fit."""

from __future__ import annotations

from zerobench.report.table import UNKNOWN, Column, Table, number, scaled
from zerobench.results import Json


def tables_beside(results: Json) -> list[Table]:
    """One table of each kind, in the order of the report; without measurements a table has no rows."""
    return [_collectives(results), _kernels(results), _fits(results)]


def _collectives(results: Json) -> Table:
    columns = [
        Column("collective", text=True),
        Column("ranks"),
        Column("bytes"),
        Column("backend", text=True),
        Column("time, us", "less"),
        Column("algorithm GB/s", "more"),
        Column("bus GB/s", "more"),
    ]
    lines = [
        [
            str(each["collective"]),
            number(each["world"], "d"),
            number(each["bytes"], ",d"),
            str(each.get("backend") or UNKNOWN),
            scaled(each["seconds"], 1e-6),
            scaled(each["algorithm_bandwidth"], 1e9),
            scaled(each["bus_bandwidth"], 1e9),
        ]
        for each in results["collectives"] or []
    ]
    return Table(
        "Collectives on this machine", columns, lines, ["Bandwidths as nccl-tests defines them; 1 GB is 10^9 bytes."]
    )


def _kernels(results: Json) -> Table:
    columns = [
        Column("kernel", text=True),
        Column("implementation", text=True),
        Column("elements"),
        Column("bytes"),
        Column("time, us", "less"),
        Column("GB/s", "more"),
        Column("x faster", "more"),
        Column("than", text=True),
    ]
    lines = [
        [
            str(each["kernel"]),
            str(each["implementation"]),
            number(each["elements"], ",d"),
            number(each["bytes"], ",d"),
            scaled(each["seconds"], 1e-6),
            scaled(each["bandwidth"], 1e9),
            number(each["ratio"], ".2f"),
            str(each["against"] or UNKNOWN),
        ]
        for each in results["kernels"] or []
    ]
    return Table("Kernels", columns, lines, ["1 GB is 10^9 bytes."])


def _fits(results: Json) -> Table:
    columns = [
        Column("subject", text=True),
        Column("stage"),
        Column("offload", text=True),
        Column("dtype", text=True),
        Column("ranks"),
        Column("limit, MiB"),
        Column("parameters", "more"),
        Column("x first", "more"),
        Column("too many"),
        Column("step, ms", "less"),
    ]
    fits = results["fits"] or []
    first = {each["limit"]: each["parameters"] for each in reversed(fits)}
    lines = [
        [
            str(each["subject"]),
            str(each["stage"]),
            str(each["offload"] or "none"),
            str(each["dtype"]),
            number(each["world"], "d"),
            number(each["limit"] >> 20, ",d"),
            number(each["parameters"], ",d") if each["verdict"] == "measured" else each["verdict"],
            number(_times(each["parameters"], first[each["limit"]]), ".2f"),
            number(each["beyond"], ",d"),
            scaled(each["seconds"], 1e-3),
        ]
        for each in fits
    ]
    legend = [
        "parameters: of the largest model that trained.",
        "too many: of the next one; it did not train, or its states exceed the limit or 0.8 of the host's memory.",
        "x first: as many times those of the first line with this limit.",
    ]
    return Table("Largest model within a limit of memory", columns, lines, legend)


def _times(value: int | None, first: int | None) -> float | None:
    return value / first if value is not None and first else None
