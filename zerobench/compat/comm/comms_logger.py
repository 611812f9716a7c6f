"""The communications logger: calls, message sizes and latencies of collectives, as DeepSpeed prints them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import torch
import torch.distributed as dist

from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.compat.log import report
from zerobench.compat.profiling.timers import trim_mean
from zerobench.meters.traffic import Call, TrafficMeter

_COLUMNS = ("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)")
_RATES = ("tput_avg (Gbps)", "busbw_avg (Gbps)")
_OPTIONS = ("enabled", "verbose", "debug", "prof_all", "prof_ops")
_UNITS = ("B", "KB", "MB", "GB", "TB")
#: Of point to point, a wait for one end can keep the process from its other end.
_NOT_AWAITED = frozenset(["send", "recv"])


def convert_size(size_bytes: int) -> str:
    """A size in words, such as ``1.5 KB``."""
    unit, size = 0, float(size_bytes)
    while size >= 1024 and unit < len(_UNITS) - 1:
        unit, size = unit + 1, size / 1024
    return f"{round(size, 2)} {_UNITS[unit]}"


def rates(collective: str, size: int, milliseconds: float, world: int) -> tuple[float, float]:
    """The rate of the message and that of a bus, in Gbit/s, by the formulas of DeepSpeed and of nccl-tests.

    Args:
        collective: such as ``all_reduce``.
        size: bytes of this rank's input.
        milliseconds: of the call.
        world: ranks.
    """
    moved = size * world if collective in ("all_gather", "reduce_scatter") else size
    once = moved / max(milliseconds, 1e-6) * 8 / 1e6
    share = (world - 1) / world
    if collective == "all_reduce":
        return 2 * once, 2 * once * share
    return once, once * share if collective in ("all_gather", "reduce_scatter", "all_to_all") else once


class CommsLogger:
    """Records the collectives of the engine and of ``deepspeed.comm`` if it is enabled."""

    def __init__(self) -> None:
        self.enabled = self.verbose = self.debug = False
        self.prof_all, self.prof_ops = True, list[str]()
        self.comms_dict: dict[str, dict[int, list[float]]] = {}  # milliseconds by collective and message size
        self._collectives = dict[str, str]()  # by logged name
        self._recording = False

    def configure(self, given: dict[str, Any]) -> None:
        """Take the values of the configuration's section; others stay."""
        for name in _OPTIONS:
            if given.get(name) is not None:
                setattr(self, name, given[name])

    @contextlib.contextmanager
    def recording(self, log_name: str | None = None, prof: bool = False) -> Iterator[None]:
        """Record the collectives of the block. Each is waited for, so that its time is its own.

        Args:
            log_name: their name in the log; by default that of each.
            prof: whether the options ``prof_all`` and ``prof_ops`` do not matter.
        """
        if not self.enabled or self._recording:
            yield
            return
        self._recording = True
        try:
            with _Timed(self, log_name, prof):
                yield
        finally:
            self._recording = False

    def append(
        self, collective: str, size: int, milliseconds: float, log_name: str | None = None, prof: bool = False
    ) -> None:
        """Record one call."""
        name = log_name or collective
        if not (prof or self.prof_all or any(each == name or each.startswith(collective) for each in self.prof_ops)):
            return
        self._collectives[name] = collective
        self.comms_dict.setdefault(name, {}).setdefault(size, []).append(milliseconds)
        if self.verbose:
            speed, bus = rates(collective, size, milliseconds, dist.get_world_size())
            report(
                f"comm op: {name} | time (ms): {milliseconds:.2f} | msg size: {convert_size(size)} | "
                f"algbw (Gbps): {speed:.2f} | busbw (Gbps): {bus:.2f}"
            )

    def summary(self) -> dict[str, dict[int, dict[str, Any]]]:
        """By collective and message size: the number of calls, latencies and rates; means leave a tenth out."""
        world, kinds = dist.get_world_size(), self._collectives
        return {
            name: {size: _of_size(kinds.get(name, name), size, times, world) for size, times in sorted(sizes.items())}
            for name, sizes in self.comms_dict.items()
        }


def _of_size(name: str, size: int, times: list[float], world: int) -> dict[str, Any]:
    both = [rates(name, size, each, world) for each in times]
    return {
        "count": len(times),
        "total_latency_ms": sum(times),
        "avg_latency_ms": trim_mean(times, 0.1),
        "tput_avg_gbps": trim_mean([speed for speed, _ in both], 0.1),
        "busbw_avg_gbps": trim_mean([bus for _, bus in both], 0.1),
        "msg_size_bytes": size,
        "msg_size_str": convert_size(size),
    }


class _Timed(TrafficMeter):
    def __init__(self, logger: CommsLogger, log_name: str | None, prof: bool) -> None:
        super().__init__()
        self._logger, self._log_name, self._prof = logger, log_name, prof

    def issue(self, call: Call, operation: Callable[[], Any]) -> None:
        begin = time.perf_counter()
        super().issue(call, operation)
        if call.collective not in _NOT_AWAITED:
            for work in call.works:
                work.wait()
            get_accelerator().synchronize()
        size = sum(each.nbytes for each in call.inputs) if call.collective != "barrier" else 0
        taken = (time.perf_counter() - begin) * 1000
        self._logger.append(call.collective, size, taken, self._log_name, self._prof)


comms_logger = CommsLogger()


def configure(
    deepspeed_config: Any = None,
    enabled: bool | None = None,
    prof_all: bool | None = None,
    prof_ops: list[str] | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
) -> None:
    """Set the logger's options: those of a ``DeepSpeedConfig``, if its section is enabled, then the others."""
    if deepspeed_config is not None and deepspeed_config.comms_logger_config.enabled:
        section = deepspeed_config.comms_logger_config
        comms_logger.configure({name: getattr(section, name) for name in _OPTIONS})
    given = {"enabled": enabled, "prof_all": prof_all, "prof_ops": prof_ops, "verbose": verbose, "debug": debug}
    comms_logger.configure(given)


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> dict[str, Any] | None:
    """Print a table of all recorded collectives on rank 0; a collective.

    Args:
        show_straggler: also the part of the latencies for which this rank waited for others.
        return_dict: return the numbers on every rank.
    """
    dist.barrier()
    found = comms_logger.summary()
    lost = _straggling() if show_straggler else None
    if dist.get_rank() == 0:
        _print(found, lost)
    dist.barrier()
    if not return_dict:
        return None
    now = datetime.now(UTC).isoformat()
    metadata = {"world_size": dist.get_world_size(), "rank": dist.get_rank(), "timestamp": now}
    return {"summary": found, "straggler_analysis": lost, "metadata": metadata}


def _straggling() -> dict[str, dict[int, dict[str, Any]]]:
    """The latencies of the fastest rank, and this rank's time beyond them."""
    device, found = get_accelerator().current_device_name(), dict[str, dict[int, dict[str, Any]]]()
    for name, sizes in comms_logger.comms_dict.items():
        for size, times in sorted(sizes.items()):
            least = torch.tensor(times, device=device)
            dist.all_reduce(least, op=dist.ReduceOp.MIN)
            total, waited = float(least.sum()), sum(times) - float(least.sum())
            found.setdefault(name, {})[size] = {
                "count": len(times),
                "total_comm_lat_ms": total,
                "total_straggler_ms": waited,
                "avg_comm_lat_ms": total / len(times),
                "avg_straggler_ms": waited / len(times),
                "msg_size_bytes": size,
                "msg_size_str": convert_size(size),
            }
    return found


def _print(found: dict[str, Any], lost: dict[str, Any] | None) -> None:
    _table((*_COLUMNS, *_RATES), found, ("total_latency_ms", "avg_latency_ms", "tput_avg_gbps", "busbw_avg_gbps"))
    if lost is not None:
        print("_______________________________\nBreakdown with straggler effect\n-------------------------------")
        titles = ("Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)", "Avg straggler(ms)")
        keys = ("total_comm_lat_ms", "total_straggler_ms", "avg_comm_lat_ms", "avg_straggler_ms")
        _table((*_COLUMNS[:3], *titles), lost, keys)


def _table(titles: tuple[str, ...], found: dict[str, Any], keys: tuple[str, ...]) -> None:
    print("".join(f"{title:<20}" for title in titles))
    for name, sizes in found.items():
        print(name)
        for each in sizes.values():
            numbers = "".join(f"{each[key]:<20.2f}" for key in keys)
            print(f"{' ':<20}{each['msg_size_str']:<20}{each['count']:<20}{numbers}")


def reset_log() -> None:
    """Forget all recorded collectives."""
    comms_logger.comms_dict.clear()


def has_comm_data() -> bool:
    """Whether a collective was recorded."""
    return bool(comms_logger.comms_dict)


def get_comm_operation_count() -> int:
    """The number of recorded collectives."""
    return sum(len(times) for sizes in comms_logger.comms_dict.values() for times in sizes.values())


def get_logged_comm_ops() -> list[str]:
    """The kinds of recorded collectives."""
    return list(comms_logger.comms_dict)
