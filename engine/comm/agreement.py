"""Agreement: the ranks agree on the next collectives, since their graphs may differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch

from zerobench.engine.comm.collectives import Ranks


@dataclass(frozen=True)
class Decision:
    """The result of a round, the same on every rank."""

    wanted: list[int]  # units that at least one rank wants whole
    ready: int  # the number of units, in the order of reduction, that every rank can reduce
    over: bool  # every rank is at the end of its pass


class Agreement:
    """Agrees on the next collectives, one round after another.

    Ranks may use different units (a layer that only one rank's batch reaches). A collective hangs if not all ranks
    issue it, or if they issue two collectives in different orders. So if parameters are sharded, ranks communicate by
    agreement only. In a round each rank announces the units it wants gathered, the number of units that it can reduce,
    and whether its pass is over; this is one small all-gather. When all ranks have announced, all issue the same
    collectives: a gather for each unit that any rank wants, then a reduction for each unit that every rank can reduce.
    If a rank's pass is over, it keeps announcing this until the passes of all ranks are over.

    Announcing does not wait: a round announced while one unit computes is decided when the next unit is used. Each
    rank's calls alternate strictly (announcement, decision, announcement, ...). So all ranks issue the collectives of
    the group in one order, and a rank waits only for rounds that every rank has announced or will announce.
    """

    def __init__(self, ranks: Ranks, units: int, device: torch.device) -> None:
        self.ranks, self.units = ranks, units
        self.device = device
        self._bits = units // 8 + 1
        self._pending: Callable[[], list[bytes]] | None = None  # waits for the messages of all ranks

    def announce(self, wanted: Iterable[int], ready: int, over: bool, kind: str = "") -> None:
        """Announce the needs of this rank for the next round, without waiting; ``kind`` is that of its pass."""
        bits = sum({1 << unit for unit in wanted}) | over << self.units
        message = bits.to_bytes(self._bits, "little") + (ready | _KINDS.get(kind, 0)).to_bytes(4, "little")
        self._pending = self._send(message)

    def _send(self, message: bytes) -> Callable[[], list[bytes]]:
        """Start sending the message to all ranks; the returned call waits for those of all ranks, in rank order."""
        if self.ranks.world == 1:
            return lambda: [message]
        own = torch.frombuffer(bytearray(message), dtype=torch.uint8).to(self.device)
        everyone = torch.empty(self.ranks.world * own.numel(), dtype=torch.uint8, device=self.device)
        work = self.ranks.all_gather(everyone, own)

        def received() -> list[bytes]:
            work.wait()
            return [bytes(row) for row in everyone.view(self.ranks.world, -1).tolist()]  # one wait for the device

        return received

    def decide(self) -> Decision | None:
        """Wait until every rank has announced, and return the decision; None if this rank has not announced.

        Raises:
            RuntimeError: some ranks read parameters or evaluate while others train.
        """
        if self._pending is None:
            return None
        messages, self._pending = self._pending(), None
        masks = [int.from_bytes(message[: self._bits], "little") for message in messages]
        counts = [int.from_bytes(message[self._bits :], "little") for message in messages]
        _check_kinds(counts)
        return Decision(
            wanted=list(self._wanted(masks)),
            ready=min(count & _UNITS for count in counts),
            over=all(mask >> self.units & 1 for mask in masks),
        )

    def _wanted(self, masks: list[int]) -> Iterator[int]:
        """The units that at least one mask has, in order."""
        union = reduce(or_, masks) & ~(1 << self.units)
        while union:
            lowest = union & -union
            yield lowest.bit_length() - 1
            union ^= lowest


#: Flags beside the number of units that can be reduced, for the kinds of passes that must not meet; "backward" is a
#: training pass whose backward runs.
_KINDS = {"reading": 1 << 31, "training": 1 << 30, "evaluation": 1 << 29, "backward": 1 << 28}
#: The bits of the number itself.
_UNITS = (1 << 28) - 1


def _check_kinds(counts: list[int]) -> None:
    """Raise if a rank that reads meets one that trains, or one that evaluates meets a backward.

    Of two such calls at least one is not made by every rank. A forward of training may meet an evaluation: if its
    outputs are dropped, no backward follows.
    """
    kinds = ([rank for rank, count in enumerate(counts) if count & flag] for flag in _KINDS.values())
    reading, forward, evaluating, backward = kinds
    training = sorted(forward + backward)
    if reading and training:
        raise RuntimeError(
            f"rank {_listed(reading)} reads parameters while rank {_listed(training)} trains, but every rank must make "
            "both calls: call GatheredParameters, safe_get_* and state_dict() on every rank, not only if rank == 0"
        )
    if evaluating and backward:
        raise RuntimeError(
            f"rank {_listed(evaluating)} evaluates while rank {_listed(backward)} is in a backward, but at stage 3 "
            "every rank must make both calls: run as many forwards and backwards on every rank, not only if rank == 0"
        )


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
