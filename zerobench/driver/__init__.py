"""Drive a subject through a Scenario on one rank and record the run."""

from zerobench.driver.building import model_for, start, wrap
from zerobench.driver.reading import ALL, Keep, evaluation, flat, labelled, to_cpu
from zerobench.driver.resuming import (
    directory_of,
    go_astray,
    loaded,
    loaded_client_state,
    resumed,
    save,
    save_again,
)
from zerobench.driver.running import Run, drive
from zerobench.driver.stepping import (
    changed_factors,
    draw_batches,
    edit_gradients,
    finish,
    prepare,
    run_step,
    run_steps,
)

__all__ = [
    "ALL",
    "Keep",
    "Run",
    "changed_factors",
    "directory_of",
    "draw_batches",
    "drive",
    "edit_gradients",
    "evaluation",
    "finish",
    "flat",
    "go_astray",
    "labelled",
    "loaded",
    "loaded_client_state",
    "model_for",
    "prepare",
    "resumed",
    "run_step",
    "run_steps",
    "save",
    "save_again",
    "start",
    "to_cpu",
    "wrap",
]
