"""The files of a checkpoint of DeepSpeed's in its folder."""

from __future__ import annotations

import re
from pathlib import Path

from zerobench.engine.errors import CheckpointError

#: Of stages 0 to 2, and of stage 3 on rank 0.
WHOLE_MODEL, FIRST_MODEL = "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"
_OPTIMIZER = re.compile(r"(bf16_)?zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt")
UNIVERSAL = "zero"
#: The files of an optimizer that was offloaded to NVMe.
_SWAPPED = "offloaded_tensors"
#: Of experts, layers of a pipeline and tensor-parallel ranks, which no engine here has.
_OTHERS = re.compile(r"expert_|expp_rank_|layer_|.*mp_rank_(?!00_)\d\d_")


def is_deepspeed(folder: Path) -> bool:
    """Whether a folder has a file of a checkpoint of DeepSpeed's."""
    named = (any(folder.glob(f"*{suffix}")) for suffix in ("_model_states.pt", "_optim_states.pt"))
    return is_universal(folder) or any(named)


def is_universal(folder: Path) -> bool:
    """Whether a checkpoint of DeepSpeed's is a universal one: each parameter has a folder in a folder of this name."""
    return (folder / UNIVERSAL).is_dir()


def check_whole(folder: Path) -> None:
    """Check that the values are in files that say whose they are.

    Raises:
        CheckpointError: they were offloaded to NVMe.
    """
    if (folder / _SWAPPED).is_dir():
        raise CheckpointError(
            f"{str(folder)!r} was saved with the optimizer offloaded to NVMe: the files in {_SWAPPED!r} are named by "
            "numbers that DeepSpeed gives to parameters in memory and does not save, so nobody can tell whose values "
            "they are; resume in DeepSpeed with the same configuration and save the weights with save_16bit_model(), "
            "or train with offload to the CPU"
        )


def model_name(rank: int, stage: int) -> str:
    """The name of the model's file; below stage 3 all ranks have one."""
    return f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" if stage == 3 else WHOLE_MODEL


def optimizer_name(rank: int, *, bf16: bool) -> str:
    """The name of a rank's optimizer file, at stages 1 to 3."""
    return f"{'bf16_' if bf16 else ''}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def model_files(folder: Path) -> list[Path]:
    """The model's file, or at stage 3 each rank's, by rank.

    Raises:
        CheckpointError: one is missing, or the checkpoint is one of model parallelism or experts.
    """
    for path in sorted(folder.glob("*.pt")):
        if _OTHERS.match(path.name):
            raise CheckpointError(
                f"{str(folder)!r} has {path.name!r}: it was saved with tensor or pipeline parallelism or experts, and "
                "only checkpoints of data parallelism can be loaded"
            )
    if (folder / WHOLE_MODEL).is_file():
        return [folder / WHOLE_MODEL]
    return [folder / model_name(rank, 3) for rank in range(_ranks(folder, FIRST_MODEL))]


def optimizer_files(folder: Path) -> list[Path]:
    """Each rank's optimizer file, by rank; none at stage 0.

    Raises:
        CheckpointError: one is missing.
    """
    found = [match for path in sorted(folder.glob("*.pt")) if (match := _OPTIMIZER.fullmatch(path.name))]
    if not found:
        return []
    bf16 = found[0][1] is not None
    return [folder / optimizer_name(rank, bf16=bf16) for rank in range(_ranks(folder, found[0][0]))]


def _ranks(folder: Path, like: str) -> int:
    """The number of ranks that have a file like this one."""
    name = re.compile(re.sub(r"rank_\d+", lambda _: r"rank_(\d+)", like, count=1))
    found = {int(match[1]) for path in folder.glob("*.pt") if (match := name.fullmatch(path.name))}
    if not found:
        raise CheckpointError(f"{str(folder)!r} has neither {WHOLE_MODEL!r} nor {like!r}; load another tag")
    missing = sorted(set(range(max(found) + 1)) - found)
    if missing:
        raise CheckpointError(
            f"{str(folder)!r} has files like {like!r} of {len(found)} ranks, and none of rank {missing[0]}; load "
            "another tag, or a whole copy"
        )
    return len(found)


def check_ranks(folder: Path, models: list[Path], optimizers: list[Path], world: int) -> None:
    """Check that the files of a checkpoint are of as many ranks as saved it.

    Raises:
        CheckpointError: there are fewer or more.
    """
    for found in (models if models[0].name != WHOLE_MODEL else [], optimizers):
        if found and len(found) != world:
            raise CheckpointError(
                f"{str(folder)!r} has files like {found[0].name!r} of {len(found)} ranks, and was saved by {world}; "
                "load another tag, or a whole copy"
            )
