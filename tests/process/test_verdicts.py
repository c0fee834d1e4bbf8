"""Real ranks fail together, one after another or not at all, and the report's first lines say which, and why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_run import Started

NODES = ("--local-nodes", "2", "--nproc-per-node", "2", "--max-restarts", "0", "--grace", "5")
BEGIN = "import os, sys, time\nRANK = int(os.environ['RANK'])\nNODE = RANK // 2\n"
LATER = "sys.excepthook = lambda *e, hook=sys.excepthook: (hook(*e), time.sleep(2))\n"
"""All ranks have raised before the first process ends, for which the others are stopped."""
TOGETHER = """
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
dist.all_reduce(torch.ones(1))
"""


def cause_and_text(
    directory: Path, program: str, *arguments: str, options: tuple[str, ...] = ()
) -> tuple[dict[str, Any], str]:
    (directory / "train.py").write_text(BEGIN + program)
    run = Started(directory, *NODES, *options, "train.py", *arguments)
    assert run.wait(90) != 0, run.err
    report = json.loads((run.run_dir / "report.json").read_text())
    return report["cause"], " ".join((run.run_dir / "report.txt").read_text().split())


def test_a_message_of_the_program_does_not_make_a_victim(tmp_path: Path) -> None:
    program = "if RANK == 2:\n    raise RuntimeError('cache of the ProcessGroup timed out')\ntime.sleep(60)\n"
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["rank"], cause["role"], cause["cause"]) == (2, "primary", "exception")
    assert "follows from" not in text


def test_the_rank_that_left_while_the_others_lost_their_connection_to_it_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    program = f"""{LATER}{TOGETHER}
def upload():
    print("uploading", file=sys.stderr, flush=True)
    time.sleep(60)

if RANK == 2:
    dist.destroy_process_group()
    upload()
dist.all_reduce(torch.ones(1))
dist.all_reduce(torch.ones(1))
"""
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["rank"], cause["role"]) == (2, "primary")
    assert "rank 2 on local1 has not joined all_reduce #2 [1 float32], in which rank" in text
    assert "in time.sleep at train.py:" in text
    assert "| uploading" in text


def test_a_wait_for_a_key_that_no_rank_sets_is_no_consequence_of_another_ranks_end(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    program = f"""{TOGETHER}
if RANK == 1:
    dist.distributed_c10d._get_default_store().wait(["shards"], timedelta(seconds=1))
time.sleep(60)
"""
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["rank"], cause["role"]) == (1, "primary")
    assert "DistStoreError: wait timeout" in text
    assert "No rank had set these keys" in text


def test_a_failure_of_all_ranks_is_one_of_all_ranks(tmp_path: Path) -> None:
    program = f"{LATER}import flash_attention_9\n"
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["alike"]["subject"], cause["alike"]["ranks"]) == ("all 4 ranks", "0-3")
    assert "FAILED: all 4 ranks: ModuleNotFoundError: No module named 'flash_attention_9'" in text
    assert "The script was run by" in text


def test_a_failure_of_all_ranks_of_one_node_is_one_of_that_node(tmp_path: Path) -> None:
    program = f"""{LATER}
if NODE == 1:
    open("/scratch/of/this/node")
time.sleep(60)
"""
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["alike"]["scope"], cause["alike"]["ranks"], cause["node"]) == ("nodes", "2-3", "local1")
    assert "all ranks of local1: FileNotFoundError" in text
    assert "whether the other nodes' ranks would have failed so is not known" in text


def test_a_failure_of_one_nodes_ranks_at_a_step_that_the_others_have_passed_is_only_theirs(tmp_path: Path) -> None:
    program = f"""{LATER}
import ftslurm
for step in range(1, 40):
    ftslurm.progress(step)
    time.sleep(0.05)
    if NODE == 1 and step == 2:
        time.sleep(0.5)
        open("/scratch/of/this/node")
time.sleep(60)
"""
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["alike"]["scope"], cause["alike"]["ranks"], cause["node"]) == ("nodes", "2-3", "local1")
    assert "all ranks of local1, and only these: FileNotFoundError" in text


APART = f"""{LATER}{TOGETHER}
impatient = dist.new_group(timeout=timedelta(seconds=5))
dist.all_reduce(torch.ones(1))

def evaluate():
    dist.barrier(group=impatient)

def sync():
    dist.all_reduce(torch.ones(1), group=impatient)

sync()
if RANK == 0:
    evaluate()
sync()
sync()
"""


def test_ranks_that_wait_in_different_calls_are_shown_by_their_records(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    text = cause_and_text(tmp_path, APART)[1]
    assert "rank 0 on local0 calls barrier #2 where ranks 1-3 call all_reduce #2 [1 float32]" in text
    assert "which is done" not in text


def test_ranks_that_wait_for_each_other_at_different_places_are_two_parties_without_records_too(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    text = cause_and_text(tmp_path, APART, options=("--flight-recorder", "off"))[1]
    assert "all 4 ranks" not in text
    parties = r"ranks 1-3 at train.py:\d+ in sync, rank 0 at train.py:\d+ in evaluate"
    assert re.search(f"the ranks waited at different places: {parties}", text), text
    assert "see what led these to different places" in text


def test_an_option_of_ftslurm_behind_the_program_is_sent_before_it(tmp_path: Path) -> None:
    program = "import argparse\nargparse.ArgumentParser().parse_args()\n"
    text = cause_and_text(tmp_path, program, "--max-restarts", "3")[1]
    assert "unrecognized arguments: --max-restarts 3" in text
    assert "--max-restarts is an option of ftslurm: put it before the program" in text


def test_an_abort_without_a_message_has_no_hint_to_read_one(tmp_path: Path) -> None:
    program = "import faulthandler\nfaulthandler.disable()\nif RANK == 1:\n    os.abort()\ntime.sleep(60)\n"
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["rank"], cause["cause"]) == (1, "abort")
    assert "aborted without a message" in text
    assert "last lines of stderr" not in text


def test_the_thread_for_which_a_rank_waited_in_vain_is_named(tmp_path: Path) -> None:
    program = """
import queue, threading
batches = queue.Queue()

def produce():
    raise PermissionError(13, "Permission denied", "/data/shard5")

if RANK == 1:
    threading.Thread(target=produce, name="loader").start()
    batches.get(timeout=1)
time.sleep(60)
"""
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["rank"], cause["where"]["line"]) == (1, 13)
    assert "thread loader of rank 1 died at train.py:9: PermissionError: [Errno 13] Permission denied" in text


def test_a_rank_that_went_on_after_a_traceback_did_not_fail_by_it(tmp_path: Path) -> None:
    program = """
import traceback
if RANK == 1:
    try:
        open("/sys/no/such/device")
    except OSError:
        traceback.print_exc()
        sys.stderr.flush()
    for i in range(4):
        time.sleep(1)
        print("batch", i, flush=True)
    print("patience exhausted, leaving", flush=True)
    os._exit(3)
time.sleep(60)
"""
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["rank"], cause["cause"]) == (1, "exit")
    assert 'its stdout ends with "patience exhausted, leaving"' in text


def test_a_rank_that_finished_too_early_is_shown_with_what_it_printed_last(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    program = f"""{TOGETHER}
import logging
if RANK == 0:
    logging.error("training aborted: the validation set is empty")
    sys.exit(0)
dist.all_reduce(torch.ones(1))
"""
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["rank"], cause["role"]) == (0, "primary")
    assert "rank 0 on local0 ended with exit code 0 while" in text
    assert "| ERROR:root:training aborted: the validation set is empty" in text


def test_ranks_that_log_an_exception_and_exit_are_judged_by_what_each_has_logged(tmp_path: Path) -> None:
    program = """
import logging

def main():
    try:
        return {}[20]
    except KeyError:
        logging.exception("training failed")
        return 1

code = main()
time.sleep(0.1 * RANK)
sys.exit(code)
"""
    cause, text = cause_and_text(tmp_path, program)
    assert cause["cause"] == "exception"
    assert "KeyError: 20 (from its stderr)" in text
    assert "It printed nothing" not in text


def test_a_traceback_that_all_ranks_have_lived_on_after_explains_no_kill(tmp_path: Path) -> None:
    program = """
import signal, traceback
try:
    open("/sys/no/such/device")
except OSError:
    traceback.print_exc()
time.sleep(2.5)
if RANK == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""
    cause, text = cause_and_text(tmp_path, program)
    assert (cause["rank"], cause["cause"]) == (1, "sigkill")
    assert "killed by SIGKILL, sender unknown" in text


def test_the_last_line_of_a_command_line_tool_explains_its_exit_code(tmp_path: Path) -> None:
    program = """
import subprocess
if RANK == 2:
    subprocess.run(["tar", "-xf", "/no/such/archive.tar"], check=True)
time.sleep(60)
"""
    text = cause_and_text(tmp_path, program)[1]
    assert "tar: /no/such/archive.tar: Cannot open: No such file or directory" in text
