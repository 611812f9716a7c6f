"""torch.distributed.checkpoint: a save before the first update changes it, or gives a file that does not load."""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1, bias=False)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[float]]:
    """The change of the weight in one step."""
    weight = next(model.parameters())
    before = weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return (weight.detach() - before).tolist()


def saved_at_the_start() -> bool:
    """Whether reading the state, as a save does, changes the first update of the running job."""
    expected = update(*make())
    model, optimizer = make()
    get_state_dict(model, optimizer)
    got = update(model, optimizer)
    print(f"first update after a save: expected {expected}, got {got}")
    return got != expected


def saved_after_a_skipped_step() -> bool:
    """Whether the state after a step that was skipped, whose gradients are still there, cannot be loaded."""
    model, optimizer = make()
    model(torch.ones(1, 2)).sum().backward()  # and no optimizer.step(), because of an overflow
    with tempfile.TemporaryDirectory() as folder:
        save({"optimizer": get_state_dict(model, optimizer)[1]}, checkpoint_id=folder)
        try:
            load({"optimizer": get_state_dict(*make())[1]}, checkpoint_id=folder)
            told = "nothing"
        except BaseException as error:  # noqa: BLE001 - torch raises a BaseException; it is the finding
            told = str(error).strip().splitlines()[-1]
    print(f"load after a skipped step: expected no error, raised {told}")
    return told != "nothing"


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # one process needs no group
    sys.exit(int(any([saved_at_the_start(), saved_after_a_skipped_step()])))
