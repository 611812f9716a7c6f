"""Numbers as DeepSpeed's profiler writes them, with a letter for their magnitude."""

from __future__ import annotations

_SIZES = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1.0, "m": 1e-3, "u": 1e-6}


def number_to_string(num: float, units: str | None = None, precision: int = 2) -> str:
    """A number such as ``1.5 K``; ``units`` is the letter to use, by default the one that fits."""
    letter = units if units is not None else _fitting(num)
    return f"{round(num / _SIZES.get(letter, 1.0), precision):g} {letter}"


def _fitting(num: float) -> str:
    return "" if num == 0 else next((letter for letter, size in _SIZES.items() if num >= size), "u")


def flops_to_string(flops: float, units: str | None = None, precision: int = 2) -> str:
    """FLOPs."""
    return f"{number_to_string(flops, units, precision)}FLOPS"


def macs_to_string(macs: float, units: str | None = None, precision: int = 2) -> str:
    """Multiplications with an addition."""
    return f"{number_to_string(macs, units, precision)}MACs"


def bytes_to_string(b: float, units: str | None = None, precision: int = 2) -> str:
    """Bytes."""
    return f"{number_to_string(b, units, precision)}B"


def duration_to_string(duration: float, units: str | None = None, precision: int = 2) -> str:
    """Seconds."""
    return f"{number_to_string(duration, units, precision)}s"


def params_to_string(params_num: float, units: str | None = None, precision: int = 2) -> str:
    """A number of parameters, whose billion is ``B``."""
    letter = units.replace("B", "G") if units else units
    return number_to_string(params_num, letter, precision).replace("G", "B").strip()
