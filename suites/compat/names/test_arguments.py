"""Helpers of ``deepspeed.utils`` and ``deepspeed.comm`` take DeepSpeed's arguments, and what they return is alike."""

from __future__ import annotations

import importlib
import inspect
import operator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerobench.compat.comm import collectives
from zerobench.ranks import Pool
from zerobench.suites.compat import loops, oracle


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("utils.safe_get_full_fp32_param", ["param"]),
        ("utils.safe_get_full_grad", ["param"]),
        ("utils.safe_get_full_optimizer_state", ["param", "optim_state_key"]),
        ("utils.safe_set_full_fp32_param", ["param", "value"]),
        ("utils.safe_set_full_grad", ["param", "value"]),
        ("utils.safe_set_full_optimizer_state", ["param", "value", "optim_state_key"]),
        ("utils.set_z3_leaf_modules", ["model", "leaf_module_classes", "raise_if_not_found"]),
        ("utils.set_z3_leaf_modules_by_name", ["model", "module_names", "flag", "raise_if_not_found"]),
        ("utils.set_z3_leaf_modules_by_suffix", ["model", "module_name_suffixes", "flag", "raise_if_not_found"]),
        ("comm.allgather_fn", ["output_tensor", "input_tensor", "group", "async_op", "debug"]),
        ("comm.reduce_scatter_fn", ["output_tensor", "tensor", "op", "group", "async_op", "prof", "debug"]),
    ],
)
def test_arguments_have_deepspeeds_names(name: str, arguments: list[str]) -> None:
    """In DeepSpeed's order, so that a script may give them by position and by keyword."""
    assert list(inspect.signature(operator.attrgetter(name)(loops.deepspeed())).parameters) == arguments


def test_groups_of_other_parallelism() -> None:
    """Their sizes are 1, also for the group of a name; they may be set to what they are."""
    groups = loops.deepspeed().utils.groups
    groups.set_tensor_model_parallel_world_size(1)
    groups.set_tensor_model_parallel_rank(rank=0)
    assert groups._get_expert_parallel_world_size("ep_size_1") == groups.get_tensor_model_parallel_world_size() == 1
    assert groups._get_expert_data_parallel_rank(group_name="ep_size_1") == groups._get_sequence_parallel_rank() == 0
    for name, value in (("world_size", 2), ("rank", 1)):
        with pytest.raises(NotImplementedError, match=f"utils.groups.set_tensor_model_parallel_{name} is not offered"):
            getattr(groups, f"set_tensor_model_parallel_{name}")(value)


def test_leaf_modules() -> None:
    """Classes with those derived from them, names of classes, of modules and their ends; as in DeepSpeed."""
    utils = loops.deepspeed().utils
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Bilinear(2, 2, 2), nn.Linear(2, 2)))
    first, inner, last = model[0], model[1], model.get_submodule("1.1")
    assert utils.set_z3_leaf_modules(model, [nn.Sequential]) == [inner, model]
    assert utils.set_z3_leaf_modules(model, [nn.Module])[0] is first
    assert utils.set_z3_leaf_modules(model, ["torch.nn.modules.linear.Linear"]) == [first, last]
    assert utils.unset_z3_leaf_modules(model, [nn.Module, "Linear"])[-1] is model
    assert utils.get_z3_leaf_modules(model) == []
    assert utils.set_z3_leaf_modules_by_name(model, ["1.1", "x"], raise_if_not_found=False) == ([last], ["x"])
    assert utils.set_z3_leaf_modules_by_suffix(model, ["1", "1.1"]) == ([inner, last], [])
    assert utils.set_z3_leaf_modules_by_suffix(model, ["1"], False) == ([inner, last], [])
    assert utils.get_z3_leaf_modules(model) == []
    with pytest.raises(ValueError, match="the model has no modules of the names"):
        utils.set_z3_leaf_modules_by_name(model, ["0", "x"])
    with pytest.raises(AssertionError, match="classes or their names"):
        utils.set_z3_leaf_modules(model, [first])


def test_a_loss_scaler_of_the_caller() -> None:
    """It is refused with its name, because only the engine scales losses."""
    loops.deepspeed()
    scalers = importlib.import_module("deepspeed.runtime.fp16.loss_scaler")
    for name in ("LossScaler", "DynamicLossScaler"):
        with pytest.raises(NotImplementedError, match=name):
            getattr(scalers, name)(4.0)


def _by_keyword(group: dist.ProcessGroup) -> list[list[float]]:
    """The results of collectives whose tensors have DeepSpeed's names, with the arguments of its logger."""
    comm, given = loops.deepspeed().comm, torch.ones(4)
    whole, part, swapped = torch.zeros(8), torch.zeros(2), torch.zeros(4)
    comm.all_gather_into_tensor(output_tensor=whole, tensor=given, prof=True, group=group)
    comm.reduce_scatter_tensor(output_tensor=part, tensor=given, log_name="part", group=group)
    comm.all_to_all_single(output=swapped, tensor=given, group=group)
    comm.all_reduce(given, prof=False, log_name="sum", debug="here", group=group)
    comm.barrier(log_name="end", group=group)
    return [each.tolist() for each in (whole, part, swapped, given)]


def test_keywords_of_collectives(pool: Pool) -> None:
    """The arguments of the logger change nothing."""
    assert pool.run(_by_keyword, world=2) == [[[1.0] * 8, [2.0] * 2, [1.0] * 4, [2.0] * 4]] * 2


def _by_position(group: dist.ProcessGroup) -> list[object]:
    """The results of calls whose last arguments are those of the logger, and the names that it has."""
    comm = loops.deepspeed().comm
    rank, other = comm.get_rank(), 1 - comm.get_rank()
    comm.reset_log()
    comm.configure(enabled=True, prof_all=False, prof_ops=["mean"])
    mean, whole, sent, got = (
        torch.full((2,), float(rank)),
        torch.zeros(4),
        torch.full((2,), float(rank)),
        torch.zeros(2),
    )
    comm.all_reduce(mean, comm.ReduceOp.SUM, group, False, False, "mean", "here")
    comm.all_gather_coalesced([whole], [mean], group)
    comm.all_reduce(torch.ones(1), op=torch.distributed.ReduceOp.MAX, group=group, log_name="unseen")
    comm.broadcast(mean, 0, group, False, True, "weights")
    both = [comm.P2POp(comm.isend, sent, other, group), comm.P2POp(comm.irecv, got, other, group)]
    for work in comm.batch_isend_irecv(both, True, "swap"):
        work.wait()
    comm.monitored_barrier(group, None, False, False, "end", None)
    comm.barrier(group, False, None, False, "end")
    (comm.send(sent, 1, group, 0, False, "there") if rank == 0 else comm.recv(got, 0, group, 0, False, "there"))
    comm.configure(enabled=False, prof_all=True, prof_ops=[])
    names = comm.get_logged_comm_ops()
    comm.reset_log()
    return [mean.tolist(), whole.tolist(), got.tolist(), comm.get_global_rank(group, 1), names]


def test_positions_of_collectives(pool: Pool) -> None:
    """Arguments of the logger may follow by position; it records under their names."""
    names = ["mean", "weights", "swap"]
    assert pool.run(_by_position, world=2) == [[[1.0] * 2, [1.0] * 4, [each] * 2, 1, names] for each in (1.0, 0.0)]


def test_the_logger_is_configured_by_a_configuration() -> None:
    """As in DeepSpeed, by its section if that is enabled, before the other arguments."""
    ds = loops.deepspeed()
    logger = ds.comm.comms_logger
    section = {"enabled": True, "verbose": True, "prof_all": False, "prof_ops": ["mean"]}
    config = ds.DeepSpeedConfig({"train_batch_size": 1, "comms_logger": section})
    ds.comm.configure(config, verbose=False)
    found = (logger.enabled, logger.verbose, logger.prof_all, list(logger.prof_ops))
    ds.comm.configure(enabled=False, prof_all=True, prof_ops=[])
    assert found == (True, False, False, ["mean"])
    ds.comm.configure(deepspeed_config=ds.DeepSpeedConfig({"train_batch_size": 1}))
    assert not logger.enabled


def _signatures() -> tuple[dict[str, list[tuple[str, str]]], dict[str, int]]:
    """Of the installed DeepSpeed: the parameters of each collective but the logger's, and its operations."""
    comm = importlib.import_module("deepspeed.comm")
    wrapped = {name: each for name, each in vars(comm).items() if getattr(each, "__name__", "") == "log_wrapper"}
    found = {name: _parameters(inspect.getclosurevars(each).nonlocals["func"]) for name, each in wrapped.items()}
    return found, {each.name: each.value for each in comm.ReduceOp}


def _parameters(function: object) -> list[tuple[str, str]]:
    both = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [(each.name, "" if each.name in ("log_name", "debug") else str(each.default)) for each in both]


@pytest.mark.slow
@oracle.NEEDS_DEEPSPEED
def test_parameters_of_collectives_are_deepspeeds() -> None:
    """All of them, in its order, with its defaults; the operations have its names and values."""
    expected, operations = oracle.ask(_signatures)
    expected = {name: found for name, found in expected.items() if name != "timed_op"}
    assert {name: _parameters(collectives.collective(name))[:-1] for name in collectives.COLLECTIVES} == expected
    assert {each.name: each.value for each in collectives.ReduceOp} == operations
