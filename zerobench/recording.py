"""Recording: the values that a run records."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from zerobench.scenario import Scenario

#: Full values by name.
State = dict[str, Tensor]


@dataclass
class Step:
    """One optimizer step as one rank saw it; tensors are full, on the CPU, and present only if they were requested."""

    losses: list[Tensor]  # of this rank's leaves, in order of the micro-steps; 0-dimensional, as the model returned
    norm: float | None
    skipped: bool
    loss_scale: float
    gradients: State = field(default_factory=dict)
    parameters: State = field(default_factory=dict)
    model_parameters: State = field(default_factory=dict)
    optimizer_state: dict[str, State] = field(default_factory=dict)
    #: Counters before and after the step, the hyperparameters that the Scenario schedules, after it, and the client's
    #: state that a load before it gave back, by name.
    progress: State = field(default_factory=dict)
    reads: State = field(default_factory=dict)  # by reading and name; an evaluation of the oracle's is of every rank


@dataclass(frozen=True)
class Traffic:
    """Logical bytes and calls of one collective on one rank."""

    calls: int = 0
    sent: int = 0
    received: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.calls + other.calls, self.sent + other.sent, self.received + other.received)

    def __mul__(self, times: int) -> Traffic:
        return Traffic(self.calls * times, self.sent * times, self.received * times)


@dataclass(frozen=True)
class Memory:
    """Bytes resident on one rank between steps, and the peaks within a step."""

    parameters: int
    gradients: int
    optimizer: int
    peak: int | None = None  # allocator's peak within a step, above the process's memory before the model was built
    peak_parameters: int | None = None  # peak of resident model parameters over the collectives of a step
    host: int | None = None  # bytes of the states in host memory ...
    file: int | None = None  # ... and in files; None if the Scenario offloads nothing there
    pinned: int | None = None  # host memory that is pinned, on CUDA
    reserved: int | None = None  # peak of the device memory that CUDA's caching allocator reserved


@dataclass(frozen=True)
class Split:
    """The seconds of one step by phase; ``forward`` holds the making of the batches."""

    forward: float
    backward: float
    optimizer: float


@dataclass(frozen=True)
class OffloadBytes:
    """Bytes off the device on one rank between steps, by category, and bytes moved in one step.

    ``moved`` has ``to_host``, ``to_device``, ``file_read`` and ``file_written``; a value is left out if it is 0.
    """

    host: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)


@dataclass
class Trajectory:
    """One rank's recording of a run."""

    subject: str
    scenario: Scenario
    rank: int
    steps: list[Step]
    evaluation: Tensor | None = None  # loss of one held-out batch at the end, if requested; the oracle's of every rank
    memory: Memory | None = None
    traffic: dict[str, Traffic] | None = None  # by collective, of one metered step
    wire: int | None = None  # bytes of that step on loopback, of all ranks and all other processes
    offload: OffloadBytes | None = None
    held: str | None = None  # SHA-256 of the states it holds after the metered step, if it promises bits
    seconds: list[float] = field(default_factory=list)  # of each timed step
    splits: list[Split] = field(default_factory=list)  # of each timed step, if it was split
    run_ahead: float | None = None  # seconds of a step of several in one fence
