"""Each property reaches each released engine, or the reason that it does not is written down here."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn

import pytest
from hypothesis.errors import Unsatisfiable

from zerobench.scenario import Scenario
from zerobench.suites.meta.power.alarms import drawn_properties, fixture_of
from zerobench.suites.meta.power.catching import again
from zerobench.suites.support.offered import offered_stages
from zerobench.suites.support.trials import Trials

pytestmark = pytest.mark.ci

_DRAWS = 10
_NO_MASTERS = "keeps no masters of a model in 16 bits, and has no loss scale"
_EVEN = "needs an even number of ranks for its two replicas"
_INEXACT = "resumes with Adam and AdamW, whose updates are not exact"
_OF_SCALES = (
    "test_ranks_agree_on_overflow",
    "test_static_scale_changes_nothing",
    "test_dynamic_scale_equals_static",
    "test_overflow_on_one_rank",
    "test_dynamic_loss_scale_follows",
    "test_a_dynamic_loss_scale_follows_after_a_load",
)
#: Properties by engine, with the reason.
_NOT_OFFERED: dict[str, dict[str, str]] = {
    "torch-ddp": {},
    "torch-zero1": {},
    "torch-fsdp1": {},
    "torch-fsdp2": {},
    "torch-fsdp2-hybrid-deferred": {
        "test_two_leaves_keep_their_bits": f"{_EVEN}, and one rank has a leaf",
        "test_buffers_at_another_world_size": f"{_EVEN}, and three ranks save or load",
    },
    "accelerate-ddp": {},
    "accelerate-fsdp2": {},
    "fairscale-oss": {
        **dict.fromkeys(_OF_SCALES, _NO_MASTERS),
        "test_buffers_at_another_world_size": "resumes on as many ranks as have saved",
    },
    "deepspeed": {},
    "deepspeed-universal": {
        "test_a_trained_engine_keeps_what_a_load_leaves_out": "loads a converted checkpoint as a whole",
        "test_exact_sums_keep_their_bits": _INEXACT,
    },
    "deepspeed-cpu-adam": {"test_exact_sums_keep_their_bits": _INEXACT},
}


class _Offered(BaseException):
    """A Scenario would run."""


class _NoRanks:
    """In place of ranks: to use it at all shows that the engine offers a draw."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _Offered


class _Asking(Trials):
    """Draws Scenarios for an engine and runs none."""

    def __init__(self, subject: str) -> None:
        super().__init__(_NoRanks(), subject)  # type: ignore[arg-type]
        self.runner = _NoRanks()  # type: ignore[assignment]


@pytest.mark.parametrize("name", _NOT_OFFERED)
def test_every_property_reaches_the_engine(name: str) -> None:
    """Of ten draws of a stage the engine offers one, at some stage; so no property passes an engine by in silence."""
    trials = _Asking(name)
    reason = trials.subject.unsupported(Scenario(stage=1, offload_optimizer="cpu")) or ""
    if "is not installed" in reason or "is not compiled" in reason:
        pytest.skip(reason)
    of_all = [each for each in drawn_properties() if fixture_of(each) == "trials"]
    missed = {each.test.__name__ for each in of_all if not _reaches(trials, each)}
    assert missed == _NOT_OFFERED[name].keys()


def _stages(trials: Trials, test: Any) -> list[Any]:
    """The property at each stage that the engine offers, or as it is if it draws the stage."""
    by_stage = getattr(test, "by_stage", None)
    return [test] if by_stage is None else [by_stage[stage] for stage in reversed(offered_stages(trials.subject))]


def _reaches(trials: Trials, test: Any) -> bool:
    """Whether the engine offers a draw, or says that it does not promise this."""
    for each in _stages(trials, test):
        try:
            with suppress(Unsatisfiable):
                again(each, _DRAWS)(trials)
        except _Offered:
            return True
        except pytest.skip.Exception as skipped:
            if "does not promise" in str(skipped):
                return True
    return False
