"""A hint does not contradict the evidence beside it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.dataclasses import replace
from ftslurm.records.error import HostResources, OomKills
from ftslurm.report.pipeline import make_report
from ftslurm.report.text import render

LOADER = "DataLoader worker (pid 4711) is killed by signal: "
NO_KILL = HostResources(oom=OomKills(0, 0), node_oom_kills=0, memory_total=100, least_available=90)
REFUSED = "usage: train.py [--lr LR]\ntrain.py: error: unrecognized arguments: "
PARSER = (("/w/train.py", 9, "<module>"), ("/usr/lib/python3.11/argparse.py", 2617, "exit"))


def cause_and_text(run: RunBuilder) -> tuple[dict[str, Any], str]:
    report = make_report(run.stop().close("failed", "no restarts").write(), now_ns=run.now_ns + 10**9)
    return report["cause"], " ".join(render(report, zone=time.gmtime).split())


def observed(run: RunBuilder, rank: int) -> RunBuilder:
    """Let the rank's agent have observed that memory was not short."""
    run.errors[1, rank] = replace(run.errors[1, rank], host_resources=NO_KILL)
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path).round()


def test_no_memory_is_suspected_where_a_loaders_process_crashed(run: RunBuilder) -> None:
    cause = cause_and_text(observed(run.fail(2, RuntimeError(f"{LOADER}Segmentation fault. ")), 2))[0]
    assert cause["cause"] == "dataloader-worker"
    assert "crashed in native code" in cause["advice"]
    assert "memory" not in cause["advice"]


BUS = (
    f"{LOADER}Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your"
    " shared memory limit."
)


def test_a_loaders_bus_error_claims_no_full_dev_shm_and_its_boilerplate_is_no_part_of_the_first_lines(
    run: RunBuilder,
) -> None:
    gone = RuntimeError("DataLoader worker (pid(s) 4711) exited unexpectedly")
    gone.__cause__ = RuntimeError(BUS)
    handler = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory."
    cause, text = cause_and_text(observed(run.fail(2, gone), 2).log(2, handler))
    assert cause["cause"] == "dataloader-bus"
    first = text.partition(" in round 1")[0].partition(" at ")[0]
    assert first.startswith("job-123 FAILED: rank 2 on n2: a DataLoader worker died of a bus error (DataLoader")
    assert first.endswith("killed by signal: Bus error.))")
    assert "Memory and /dev/shm were not short" in cause["advice"]


def test_of_a_loaders_worker_that_crashed_torchs_handler_says_more_than_the_pipe_that_broke(run: RunBuilder) -> None:
    frames = (("/w/train.py", 32, "main"), ("/x/torch/utils/data/dataloader.py", 1291, "_try_get_data"))
    failed = run.fail(2, ConnectionResetError(104, "Connection reset by peer"), frames=frames)
    crashed = "ERROR: Unexpected floating-point exception encountered in worker.\n"
    _, text = cause_and_text(failed.log(2, crashed))
    assert "Unexpected floating-point exception encountered in worker." in text.partition(" in round 1")[0]


def test_of_a_loaders_bus_error_without_counters_a_full_dev_shm_stays_a_possibility(run: RunBuilder) -> None:
    cause = cause_and_text(run.fail(2, RuntimeError(BUS)))[0]
    assert (cause["title"], cause["what"]) == (
        "a DataLoader worker died of a bus error",
        f"RuntimeError: {LOADER}Bus error.",
    )
    assert cause["advice"].startswith("Often a full /dev/shm")


def test_no_out_of_memory_kill_is_to_be_looked_for_where_none_was_counted(run: RunBuilder) -> None:
    cause = cause_and_text(observed(run.fail(2, signal="SIGKILL"), 2))[0]
    assert cause["advice"].startswith("The kernel counted no out-of-memory kill here")


def test_without_a_counter_the_out_of_memory_killer_stays_a_possibility(run: RunBuilder) -> None:
    assert "OOM killer" in cause_and_text(run.fail(2, signal="SIGKILL"))[0]["advice"]


def test_no_sender_of_a_signal_is_claimed_where_a_program_was_interrupted(run: RunBuilder) -> None:
    watchdog = (
        'watchdog: interrupting the main thread\nTraceback (most recent call last):\n  File "a.py", line 3, in f\n'
    )
    # Python ends itself by SIGINT after any KeyboardInterrupt.
    run.fail(2, KeyboardInterrupt(), signal="SIGINT", log=f"{watchdog}KeyboardInterrupt\n")
    cause, text = cause_and_text(run)
    expected = "interrupted (KeyboardInterrupt): watchdog: interrupting the main thread (from its stderr)"
    assert cause["what"] == expected
    assert "or the program interrupted itself" in cause["advice"]
    assert "SIGINT" not in text.partition(" at train.py")[0]


def test_an_empty_stderr_is_not_where_the_reason_of_an_abort_is(run: RunBuilder) -> None:
    assert "without a message" in cause_and_text(run.fail(2, signal="SIGABRT"))[0]["advice"]


@pytest.mark.parametrize(
    ("signal", "advice"), [("SIGALRM", "An alarm of its own"), ("SIGPIPE", "It wrote to a pipe or a socket")]
)
def test_a_signal_of_the_programs_own_is_explained(run: RunBuilder, signal: str, advice: str) -> None:
    assert cause_and_text(run.fail(2, signal=signal))[0]["advice"].startswith(advice)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_acts_as_rank_0_is_reported_as_such(run: RunBuilder, rank: int) -> None:
    kind = type("DistNetworkError", (RuntimeError,), {"__module__": "torch.distributed"})
    error = kind("The server socket has failed to listen on any local network address. port: 29533, EADDRINUSE")
    rendezvous = "/v/lib/python3.11/site-packages/torch/distributed/rendezvous.py"
    text = cause_and_text(
        run.fail(rank, error, frames=(("/w/train.py", 3, "<module>"), (rendezvous, 199, "_create_store")))
    )[1]
    assert ("acted as rank 0" in text) is (rank != 0)


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("/w/queue.py", "Rename /w/queue.py: it hides a module of Python that others import."),
        ("/usr/lib/python3.11/queue.py", "Check the environment of"),
        ("/w/tokens.py", "/w/tokens.py does not define that name: see whether it is the intended file"),
    ],
)
def test_a_file_that_hides_a_module_of_python_is_named(run: RunBuilder, file: str, advice: str) -> None:
    name = file.rpartition("/")[2].removesuffix(".py")
    error = ImportError(f"cannot import name 'Queue' from '{name}' ({file})")
    assert cause_and_text(run.fail(2, error))[0]["advice"].startswith(advice)


def test_modules_that_import_each_other_are_no_matter_of_the_environment(run: RunBuilder) -> None:
    run.attempts[0]["python"] = "/opt/conda/bin/python"
    message = (
        "cannot import name 'Base' from partially initialized module 'models' (most likely due to a circular import)"
    )
    assert cause_and_text(run.fail(2, ImportError(message)))[0]["advice"].startswith("Modules import each other")


def test_refused_arguments_are_quoted_and_an_option_of_ftslurm_is_sent_before_the_program(run: RunBuilder) -> None:
    log = f"{REFUSED}--max-restarts 3\n"
    run.attempts[0]["command"] = ["python", "train.py", "--max-restarts", "3"]
    cause, text = cause_and_text(run.fail(2, SystemExit(2), frames=PARSER, exit_code=2, log=log))
    assert "the script refused its arguments: unrecognized arguments: --max-restarts 3 (exit code 2)" in text
    assert "--max-restarts is an option of ftslurm: put it before the program" in cause["advice"]


def test_an_option_of_the_program_is_not_taken_for_one_of_ftslurm(run: RunBuilder) -> None:
    cause = cause_and_text(run.fail(2, SystemExit(2), frames=PARSER, exit_code=2, log=f"{REFUSED}--optimiser sgd\n"))[0]
    assert "option of ftslurm" not in cause["advice"]


def test_a_missing_module_on_all_ranks_names_the_interpreter(run: RunBuilder) -> None:
    run.attempts[0]["python"] = "/opt/conda/bin/python"
    for rank in range(4):
        run.fail(rank, ModuleNotFoundError("No module named 'flash'"), after_s=0.001)
    assert "The script was run by /opt/conda/bin/python" in cause_and_text(run)[0]["advice"]


def test_a_frame_of_a_library_carries_its_package(run: RunBuilder) -> None:
    frames = (("/w/train.py", 9, "main"), ("/x/lib/python3.11/site-packages/torch/_utils.py", 794, "reraise"))
    cause, text = cause_and_text(run.fail(2, ValueError("bad row"), frames=frames))
    assert cause["raised_in"]["shown"] == "torch/_utils.py"
    assert "(raised in torch/_utils.py:794)" in text


def test_the_traceback_of_a_syntax_error_is_printed_once(run: RunBuilder) -> None:
    block = '  File "/w/train.py", line 2\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
    run.fail(2, SyntaxError("invalid syntax"), log=f"first line\n{block}")
    run.errors[1, 2] = replace(run.errors[1, 2], traceback=block)
    assert cause_and_text(run)[1].count("def f(:") == 1


def test_a_script_that_ended_itself_with_a_reason_needs_no_hint_where_to_find_it(run: RunBuilder) -> None:
    assert cause_and_text(run.fail(2, SystemExit("validation failed"), log="validation failed\n"))[0]["advice"] == ""


def test_of_a_script_that_ended_itself_without_output_the_place_is_all_there_is(run: RunBuilder) -> None:
    assert (
        cause_and_text(run.fail(2, SystemExit(7), exit_code=7))[0]["advice"]
        == "It printed nothing: see the condition at that line."
    )


PICKLED = (
    ("/w/train.py", 6, "load_backbone"),
    ("/v/lib/python3.11/site-packages/torch/serialization.py", 1525, "load"),
    ("/v/lib/python3.11/site-packages/torch/serialization.py", 2109, "find_class"),
)


def test_a_module_that_the_objects_of_a_file_need_is_no_matter_of_the_environment(run: RunBuilder) -> None:
    error = ModuleNotFoundError("No module named 'legacy_models'")
    advice = cause_and_text(run.fail(2, error, frames=PICKLED))[0]["advice"]
    assert advice.startswith("The file holds objects of that module, not only tensors")


def test_an_exception_of_another_process_that_cannot_be_unpickled_is_explained(run: RunBuilder) -> None:
    error = TypeError("TokenizeError.__init__() missing 1 required positional argument: 'line'")
    frames = (("/w/train.py", 26, "main"), ("/usr/lib/python3.11/multiprocessing/connection.py", 251, "recv"))
    advice = cause_and_text(run.fail(2, error, frames=frames))[0]["advice"]
    assert advice.startswith("This exception's class cannot be unpickled here")


def test_a_property_whose_error_is_hidden_is_named(run: RunBuilder) -> None:
    run.fail(2, AttributeError("'Net' object has no attribute 'scaled'"))
    recorded = run.errors[1, 2]
    assert recorded.exception is not None
    run.errors[1, 2] = replace(recorded, exception=replace(recorded.exception, notes=("Net has a property scaled",)))
    advice = cause_and_text(run)[0]["advice"]
    assert advice.startswith("Net has a property scaled, in which an AttributeError was raised")


@pytest.mark.parametrize("inner", [("/w/models/llama.py", 3, "<module>"), None])
def test_what_the_module_of_a_files_objects_lacks_is_a_matter_of_the_environment(
    run: RunBuilder, inner: tuple[str, int, str] | None
) -> None:
    run.attempts[0]["python"] = "/opt/conda/bin/python"
    name = "flash_attn" if inner else "numpy._core"
    frames = (*PICKLED, inner) if inner else PICKLED
    advice = cause_and_text(run.fail(2, ModuleNotFoundError(f"No module named '{name}'"), frames=frames))[0]["advice"]
    assert "/opt/conda/bin/python" in advice
