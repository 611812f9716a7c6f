"""TrafficMeter: the collectives that this rank issues, counted at torch's dispatcher.

Every collective of torch.distributed, from any caller (Python, DDP's C++ reducer, FSDP2, DTensor), is an operation of
the dispatcher's ``c10d`` namespaces. Names of Python functions, which change, play no part there.

Logical bytes on one rank of a group of n (S = bytes of the full vector), exact integers:

==============  ============================================  ======================================
collective      sent                                          received
==============  ============================================  ======================================
all_reduce      2 S - c[r] - c[r+1]  (2 (n-1)/n S if even)    2 S - c[r-1] - c[r]
all_gather      (n-1) times the own part                      the others' parts
reduce_scatter  the others' parts of the own input            (n-1) times the own part
all_to_all      the parts for other ranks                     the parts from other ranks
broadcast       S on the source, once                         S on each other rank
reduce          S on each rank but the root                   S on the root, once
send, recv      S                                             S
barrier         0                                             0
==============  ============================================  ======================================

c[r] is the chunk that rank r ends with when a ring reduces: ceil(elements / n) elements each, the last ones shorter.
``other`` holds gather and scatter (parts of others) and, with their calls only, all other operations that take a
process group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from zerobench.dispatch import DispatchMode
from zerobench.recording import Traffic

#: The start of an operation's name, without underscores, and its collective.
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sharddimalltoall": "all_to_all",
    "broadcast": "broadcast",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
}


class TrafficMeter(DispatchMode):
    """Records every collective that this rank issues inside the ``with`` block, in ``traffic`` by collective.

    It sees the thread that entered the block and its autograd threads, not other threads.
    ``on_collective`` is called with the collective's name as each one is issued.
    """

    def __init__(self, on_collective: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self.traffic: dict[str, Traffic] = {}
        self._on_collective = on_collective

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if types and any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # let a DTensor first turn into plain tensors and collectives: those arrive here
        kwargs = kwargs or {}
        call = Call.of(func, args, kwargs)
        if call is None:
            return func(*args, **kwargs)
        if self._on_collective:
            self._on_collective(call.collective)
        self.issue(call, lambda: func(*args, **kwargs))
        sent, received = call.bytes()
        self.traffic[call.collective] = self.traffic.get(call.collective, Traffic()) + Traffic(1, sent, received)
        return call.result

    def issue(self, call: Call, operation: Callable[[], Any]) -> None:
        """Run the operation; a subclass may look at the call before and after it."""
        call.result = operation()


@dataclass
class Call:
    """One collective on this rank: its operation's name without namespace, its arguments by name, its result."""

    op: str
    collective: str
    arguments: dict[str, Any]
    rank: int
    world: int
    result: Any = None

    @classmethod
    def of(cls, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """The collective of an operation, None if it takes no process group."""
        if "c10d" not in func.namespace and func.namespace != "_dtensor":
            return None
        names = (argument.name for argument in func._schema.arguments)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        group = _group(arguments)
        if group is None:
            return None
        op = func._schema.name.partition("::")[2].strip("_")
        plain = op.replace("_", "")
        collective = next((name for start, name in _COLLECTIVES.items() if plain.startswith(start)), "other")
        return cls(op, collective, arguments, group.rank(), group.size())

    @property
    def inputs(self) -> list[Tensor]:
        """The rank's inputs (in place: inputs and outputs)."""
        return _tensors(next(v for name, v in self.arguments.items() if name.startswith(("input", "tensor"))))

    @property
    def outputs(self) -> list[Tensor]:
        """The rank's outputs."""
        given = [v for name, v in self.arguments.items() if name.startswith("out") and not name.endswith("sizes")]
        return _tensors(given or self.result)

    @property
    def works(self) -> list[dist.Work]:
        """The pending works of the result."""
        found = self.result if isinstance(self.result, list | tuple) else [self.result]
        return [dist.Work.unbox(each) for each in found if isinstance(each, torch.ScriptObject)]

    @property
    def root(self) -> bool:
        """Whether this rank is the root of a rooted collective."""
        return bool(self.rank == self.arguments.get("root_rank", self.arguments.get("src")))

    def bytes(self) -> tuple[int, int]:
        """Logical bytes sent and received."""
        formula = _FORMULAS.get(self.collective) or _FORMULAS.get(self.op)
        return formula(self) if formula and self.world > 1 else (0, 0)


def _group(arguments: dict[str, Any]) -> dist.ProcessGroup | None:
    group = arguments.get("process_group", arguments.get("group_name"))
    if isinstance(group, str):  # the functional collectives name their group
        return dist.distributed_c10d._resolve_process_group(group)  # type: ignore[attr-defined, arg-type]
    return None if group is None else dist.ProcessGroup.unbox(group)


def _tensors(value: Any) -> list[Tensor]:
    return list(_leaves(value))


def _leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)


def _size(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _all_reduce(call: Call) -> tuple[int, int]:
    """A ring's reduce-scatter and all-gather, of each tensor by itself."""
    sent = received = 0
    for tensor in call.inputs:
        chunks = _ring_chunks(tensor.numel(), call.world)
        before, own, after = (chunks[(call.rank + step) % call.world] for step in (-1, 0, 1))
        sent += (2 * tensor.numel() - own - after) * tensor.element_size()
        received += (2 * tensor.numel() - before - own) * tensor.element_size()
    return sent, received


def _ring_chunks(elements: int, world: int) -> list[int]:
    chunk = -(-elements // world)
    return [max(0, min(chunk, elements - rank * chunk)) for rank in range(world)]


def _all_gather(call: Call) -> tuple[int, int]:
    own = _size(call.inputs)
    return own * (call.world - 1), _size(call.outputs) - own


def _reduce_scatter(call: Call) -> tuple[int, int]:
    own = _size(call.outputs)
    return _size(call.inputs) - own, own * (call.world - 1)


def _all_to_all(call: Call) -> tuple[int, int]:
    return _to_others(call, call.inputs, "input_split_sizes"), _to_others(call, call.outputs, "output_split_sizes")


def _to_others(call: Call, tensors: list[Tensor], splits: str) -> int:
    """Bytes of all parts except the own one: given one by one, by rows in ``splits``, or equal."""
    total = _size(tensors)
    if call.op == "alltoall":
        return total - tensors[call.rank].nbytes
    rows: list[int] = call.arguments.get(splits) or [1] * call.world
    return total - total * rows[call.rank] // max(1, sum(rows))


def _broadcast(call: Call) -> tuple[int, int]:
    size = _size(call.inputs)
    return (size, 0) if call.root else (0, size)


def _reduce(call: Call) -> tuple[int, int]:
    size = _size(call.inputs)
    return (0, size) if call.root else (size, 0)


def _gather(call: Call) -> tuple[int, int]:
    own = _size(call.inputs)
    return (0, _size(call.outputs) - own) if call.root else (own, 0)


def _scatter(call: Call) -> tuple[int, int]:
    own = _size(call.outputs)
    return (_size(call.inputs) - own, 0) if call.root else (0, own)


_FORMULAS: dict[str, Callable[[Call], tuple[int, int]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send": lambda call: (_size(call.inputs), 0),
    "recv": lambda call: (0, _size(call.inputs)),
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
}
