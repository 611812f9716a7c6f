"""The test that runs each command and each program of the pages."""

from __future__ import annotations

_HERE = "suites/project/docs"
_GATE = "suites/meta/gate/test_gate.py"
_GATE_COMMAND = "suites/meta/gate/test_gate_command.py"
_BASELINE = "suites/meta/gate/test_baseline.py"
_REVISIONS = "suites/meta/gate/test_revisions.py"
_CONFORM = "suites/project/conform/test_conform.py"
_JOBS = "suites/compat/programs/test_jobs.py"
_INSTALL = "suites/project/packaging/test_install.py"

#: By a pattern of the whole command: the test that runs it, on other sizes or another engine if it takes minutes.
COMMANDS: dict[str, str] = {
    r"python -m pip install -e (\. )?'?(zerobench)?\.?\[(report|dev|deepspeed)\]'?": (
        f"{_HERE}/test_ci.py::test_extras_exist"
    ),
    r"zerobench run": f"{_INSTALL}::test_run_beside_own_modules",
    r"zerobench run --model vit-tiny .*": f"{_HERE}/test_commands.py::test_a_vit_that_recomputes",
    r"zerobench run --model nano --steps 4": "suites/project/cli/test_cli.py::test_main_job_is_right",
    r"zerobench run --subjects package\.module:Class,torch-ddp( --stages 0,1,2,3)?": (
        f"{_BASELINE}::test_the_example_of_the_pages_has_a_baseline"
    ),
    r"zerobench replay \S+ .* --(against|bytes) .*": f"{_HERE}/test_commands.py::test_replay_of_runs_and_of_bytes",
    r"zerobench replay .*": f"{_HERE}/test_commands.py::test_replay",
    r"zerobench doctor": f"{_HERE}/test_commands.py::test_doctor",
    r"zerobench report reports/cpu-two-cores/results.json --out zerobench-report": (
        f"{_HERE}/test_commands.py::test_reports"
    ),
    r"zerobench report reports/cpu-two-cores/results.json --out reports/cpu-two-cores": (
        f"{_HERE}/test_commands.py::test_a_report_rendered_again"
    ),
    r"zerobench report bench.json --out zerobench-report": "suites/project/reports/test_load.py::test_pytest_benchmark",
    r"zerobench compare reports/\S+ reports/\S+": f"{_HERE}/test_commands.py::test_reports",
    r"zerobench compare HEAD~1 HEAD( --subject package\.module:Class)?": (
        f"{_REVISIONS}::test_compare_measures_what_the_repository_holds"
    ),
    r"zerobench gate --baseline \S+": "noxfile.py::gate",
    r"zerobench gate --baseline \S+ --results \S+": f"{_GATE}::test_the_same_passes",
    r"zerobench gate (--subject package\.module:Class )?--baseline \S+ --update": (
        f"{_BASELINE}::test_update_makes_it_pass"
    ),
    r"zerobench gate (--subject package\.module:Class )?--baseline \S+ --time-against \S+": (
        f"{_GATE_COMMAND}::test_slower_fails"
    ),
    r"zerobench conform --subjects \S+ --profile \S+ --out \S+": f"{_CONFORM}::test_an_engine_of_ones_own",
    r"zerobench conform --merge .*": f"{_CONFORM}::test_an_engine_of_ones_own",
    r"python resume\.py checkpoints": f"{_HERE}/test_resume_page.py::test_example",
    r"zerobench checkpoint (inspect|verify|export) .*": f"{_HERE}/test_resume_page.py::test_example",
    r"pytest": ".ci/run",
    r"pytest suites/equivalence --subject package\.module:Class": f"{_HERE}/test_subjects_page.py::test_example_passes",
    r"pytest --pyargs zerobench\.suites\.equivalence --subject package\.module:Class( --junitxml=junit\.xml)?": (
        f"{_INSTALL}::test_suite_beside_own_modules"
    ),
    r"pytest suites/equivalence -k test_repeats_itself --hypothesis-profile quick": (
        f"{_HERE}/test_property_page.py::test_property_holds"
    ),
    r"pytest suites/meta -k DependsOnTheClock": f"{_HERE}/test_property_page.py::test_mutant_is_caught",
    r"pytest suites/(equivalence --hypothesis-profile quick|accounting -k offload|equivalence suites/accounting)": (
        f"{_HERE}/test_commands.py::test_suites"
    ),
    r"pytest suites/kernels/test_optimizers\.py .*": f"{_HERE}/test_commands.py::test_suites",
    r"pytest suites/equivalence --device cuda": "suites/meta/test_strategies.py::test_a_device_for_all_draws",
    r"pytest suites/compat/test_device_jobs\.py --device cuda --slow": "suites/compat/test_device_jobs.py::test_stages",
    r"pytest suites/bench.*": f"{_HERE}/test_commands.py::test_suites",
    r"python -m zerobench\.suites\.bench\.gpu --out zerobench-gpu": (
        "suites/project/cli/test_gpu_bench.py::test_a_part_by_the_command"
    ),
    r"python -m zerobench\.suites\.bench\.checkpoint --out zerobench-checkpoint": (
        "suites/project/cli/test_checkpoint_bench.py::test_measures_every_operation"
    ),
    r"nox --no-venv -s .*": f"{_HERE}/test_ci.py::test_command_exists",
    r"python limited\.py (cpu|nvme) /tmp": f"{_HERE}/test_offload_page.py::test_example",
    r"python -m pip install -e '\.\[hf\]'": f"{_HERE}/test_ci.py::test_extras_exist",
    r"zerobench launch --num_gpus 2 docs/examples/\S+\.py --deepspeed docs/examples/\S+( --fp16)?": (
        f"{_JOBS}::test_the_seeds_configuration"
    ),
    r"torchrun --nproc_per_node 2 -m zerobench\.compat docs/examples/\S+\.py --deepspeed docs/examples/\S+( --fp16)?": (
        f"{_JOBS}::test_stages"
    ),
    r"python -m zerobench\.compat -m accelerate\.commands\.launch .* train\.py": (
        "suites/compat/programs/test_strangers.py::test_launchers"
    ),
    r"python -m zerobench\.compat --command bash train\.sh": "suites/compat/programs/test_launcher.py::test_commands",
    r"zerobench launch --num_nodes 2 --num_gpus 1 --node_rank 0 --master_addr HOST train\.py": (
        "suites/compat/programs/test_launcher.py::test_two_agents"
    ),
    r"torchrun .* -m zerobench run .*": "suites/project/cluster/test_launch.py::test_run_on_two_nodes",
    r"torchrun .* -m pytest suites/bench .*": "suites/project/cluster/test_launch.py::test_bench_on_two_nodes",
    r"mpirun .*": "suites/project/cluster/test_launchers.py::test_run",
}

#: By page: the tests that run its Python blocks, in their order.
PROGRAMS: dict[str, list[str]] = {
    "README.md": [f"{_HERE}/test_readme.py::test_engine_example"],
    "docs/how-to/add-a-property.md": [
        f"{_HERE}/test_property_page.py::test_property_holds",
        f"{_HERE}/test_property_page.py::test_mutant_is_caught",
    ],
    "docs/how-to/add-a-subject.md": [f"{_HERE}/test_subjects_page.py::test_example_passes"],
    "docs/how-to/add-an-optimizer.md": [f"{_HERE}/test_how_to.py::test_the_walk_through_an_optimizer"],
    "docs/how-to/offload-states.md": [f"{_HERE}/test_offload_page.py::test_example"],
    "docs/how-to/save-and-resume.md": [f"{_HERE}/test_resume_page.py::test_example"] * 2,
    "docs/reference/engine.md": [f"{_HERE}/test_engine_page.py::test_example"],
}
