"""What the report makes of logs of jobs that ftslurm did not run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ftslurm.report.command import main
from ftslurm.report.logs.lines import cleaned, labelled
from ftslurm.report.logs.tracebacks import Raised, tracebacks
from ftslurm.report.pipeline import report_of_logs
from ftslurm.report.text import render

PLAIN = """\
Traceback (most recent call last):
  File "/w/boom.py", line 8, in <module>
    {}["missing"]
    ~~^^^^^^^^^^^
KeyError: 'missing'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/w/boom.py", line 10, in main
    raise ValueError("bad batch 42") from e
ValueError: bad batch 42
"""
GLOO = """\
Traceback (most recent call last):
  File "/w/boom.py", line 14, in <module>
    dist.all_reduce(t)
  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
    work.wait()
RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:23961. This is typically caused \
by a remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF!
"""
CRASH = """\
Fatal Python error: Segmentation fault

Current thread 0x00007fb40f7dcb80 (most recent call first):
  File "/w/seg.py", line 5 in <module>
"""
WARNING = "[W1121 06:55:20.03 ProcessGroup.cpp:12] Warning: destroy_process_group() was not called\n"
TABLE = """\
W1121 06:55:04.337000 5757 torch/distributed/elastic/multiprocessing/api.py:9] Sending process 11 closing signal SIGTERM
Traceback (most recent call last):
  File "/v/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
============================================================
boom.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_06:55:04
  host      : node7
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 11)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 11
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_06:55:04
  host      : node7
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 12)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 12
============================================================
"""  # fmt: skip

BAD_BATCH = "ValueError: bad batch 42 (from KeyError: 'missing')"


def of_rank(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" if line else "\n" for line in text.rstrip("\n").split("\n"))


def torchrun(parent: Path, logs: dict[int, str], *, attempt: int = 0, run: str = "none_abc") -> Path:
    for local, text in logs.items():
        folder = parent / run / f"attempt_{attempt}" / str(local)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("hello\n")
        (folder / "stderr.log").write_text(text)
    return parent


def cause(path: Path, **more: Any) -> dict[str, Any]:
    report = report_of_logs(path, **more)
    assert render(report)
    json.dumps(report)
    found: dict[str, Any] = report["cause"] or {"rank": None, "what": None}
    return found


def raised(text: str) -> list[Raised]:
    return tracebacks(labelled(cleaned(text)))


def test_the_chain_of_an_uncaught_exception_is_parsed_from_stderr() -> None:
    (found,) = raised("some line\n" + PLAIN + "\n" + WARNING)
    assert found.headline == "ValueError: bad batch 42"
    assert [(f.file, f.line, f.function) for f in found.exception.frames] == [("/w/boom.py", 10, "main")]
    assert found.exception.frames[0].source == 'raise ValueError("bad batch 42") from e'
    assert found.exception.cause is not None
    assert (found.exception.cause.type, found.exception.cause.message) == ("KeyError", "'missing'")
    assert found.traceback == PLAIN


@pytest.mark.parametrize("after", ["step 120 loss 3.1\n", "retrying\n", "WARNING: once more\n", "Epoch 3\n" + WARNING])
def test_a_traceback_in_the_middle_of_the_output_was_caught(after: str, tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text("hello\n" + PLAIN + after)
    report = report_of_logs(tmp_path / "job.out")
    assert (report["status"], report["cause"]) == ("unfinished", None)


@pytest.mark.parametrize("cut", range(0, len(PLAIN), 7))
def test_a_traceback_that_is_cut_anywhere_is_never_trouble(cut: int) -> None:
    raised(PLAIN[:cut])
    raised(PLAIN[cut:])


def test_a_syntax_error_and_messages_of_many_lines_are_understood() -> None:
    text = 'Traceback (most recent call last):\n  File "/w/a.py", line 1, in <module>\n    import b\n'
    text += '  File "/w/b.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n'
    (found,) = raised(text)
    assert (found.headline, found.exception.frames[-1].line) == ("SyntaxError: invalid syntax", 3)
    header = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/w/a.py", line 1, in f\n'
    (found,) = raised(header + "[rank0]: a.b.Oops: one\n[rank0]: two\n[rank0]: three\n")
    assert (found.exception.module, found.exception.message) == ("a.b", "one\ntwo\nthree")


def test_torchruns_log_directory_names_rank_and_cause_and_takes_the_broken_connections_for_what_they_are(
    tmp_path: Path,
) -> None:
    logs = torchrun(tmp_path, {0: of_rank(0, GLOO), 1: of_rank(1, PLAIN), 2: of_rank(2, GLOO)})
    found = cause(logs)
    assert (found["rank"], found["what"], found["where"]["line"]) == (1, BAD_BATCH, 10)
    report = report_of_logs(logs)
    (group,) = report["rounds"][0]["groups"]
    assert (group["ranks"], group["role"]) == ("0, 2", "cascade")
    assert report["rounds"][0]["world_size"] == 3
    assert any("times" in line for line in report["missing"])


def test_ranks_of_several_agents_are_distinguished_by_torchs_own_prefix(tmp_path: Path) -> None:
    torchrun(tmp_path, {0: of_rank(2, GLOO), 1: of_rank(3, PLAIN)}, run="job_b")
    torchrun(tmp_path, {0: of_rank(0, GLOO), 1: ""}, run="job_a")
    assert (cause(tmp_path)["rank"], cause(tmp_path)["node"]) == (3, "job_b")


def test_an_older_job_in_the_same_log_directory_is_left_out(tmp_path: Path) -> None:
    torchrun(tmp_path, {0: of_rank(0, PLAIN)}, run="job_old")
    for path in (tmp_path / "job_old").rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))
    torchrun(tmp_path, {0: of_rank(0, GLOO), 1: CRASH}, run="job_new")
    assert (cause(tmp_path)["node"], cause(tmp_path)["signal"]) == (None, "SIGSEGV")
    assert cause(tmp_path / "job_old")["what"] == BAD_BATCH


def test_a_traceback_was_caught_if_the_worker_says_then_that_it_has_done_its_work(tmp_path: Path) -> None:
    torchrun(tmp_path, {0: PLAIN, 1: PLAIN})
    for rank in (0, 1):
        (next(tmp_path.rglob(f"attempt_0/{rank}")) / "stdout.log").write_text("step 1\nfinished\n")
    assert report_of_logs(tmp_path)["cause"] is None
    torchrun(tmp_path, {0: of_rank(0, PLAIN), 1: ""}, attempt=1)
    (next(tmp_path.rglob("attempt_1/0")) / "stdout.log").write_text("step 1\nfinished\n")
    assert cause(tmp_path)["rank"] == 0


def test_a_rank_that_is_silent_while_all_others_lost_a_connection_is_named(tmp_path: Path) -> None:
    torchrun(tmp_path, {0: WARNING, 1: of_rank(1, GLOO)})
    text = " ".join(render(report_of_logs(tmp_path)).split())
    assert "rank 1: RuntimeError: Connection closed by peer" in text
    assert "no failure in the logs of rank 0: it may have ended first without a word" in text


def test_the_folder_of_a_run_without_an_id_is_no_node(tmp_path: Path) -> None:
    run = "77aa377d-fad7-4a5a-a2ec-fb322a7b37bb_3tpvu10j"
    torchrun(tmp_path, {0: of_rank(0, PLAIN)}, run=run)
    assert f"FAILED: rank 0: {BAD_BATCH[:20]}" in render(report_of_logs(tmp_path))


def test_two_runs_folders_whose_random_letters_have_an_underscore_are_one_job(tmp_path: Path) -> None:
    torchrun(tmp_path, {0: of_rank(0, GLOO)}, run="exit_42r73w1q")
    torchrun(tmp_path, {0: of_rank(1, PLAIN)}, run="exit_607g3ji_")
    assert cause(tmp_path)["rank"] == 1


def test_each_attempt_is_a_round(tmp_path: Path) -> None:
    torchrun(tmp_path, {0: PLAIN})
    torchrun(tmp_path, {0: CRASH}, attempt=1)
    assert (cause(tmp_path)["round"], cause(tmp_path)["cause"]) == (2, "segfault")
    assert report_of_logs(tmp_path, round_number=1)["focus"] == 1
    assert report_of_logs(tmp_path, rank=0)["rank"]["stacks"]["text"].startswith("Fatal Python error")


def test_torchs_own_record_is_believed_before_the_output(tmp_path: Path) -> None:
    torchrun(tmp_path, {0: "", 1: "noise\n"})
    record = {"message": "ValueError: bad batch 42", "extraInfo": {"py_callstack": PLAIN, "timestamp": "1795244110"}}
    (tmp_path / "none_abc/attempt_0/1/error.json").write_text(json.dumps({"message": record}))
    found = cause(tmp_path)
    assert (found["rank"], found["where"]["line"], found["time_ns"]) == (1, 10, 1795244110 * 10**9)


def test_a_kill_shows_only_in_torchruns_table_and_a_rank_that_torchrun_stopped_is_not_blamed(tmp_path: Path) -> None:
    torchrun(tmp_path, {0: "", 1: ""})
    (tmp_path / "slurm-77.out").write_text(TABLE)
    found = cause(tmp_path)
    assert (found["rank"], found["signal"], found["cause"]) == (1, "SIGKILL", "sigkill")
    assert report_of_logs(tmp_path)["rounds"][0]["groups"] == []


def test_a_jobs_output_with_the_ranks_lines_between_each_other_is_taken_apart(tmp_path: Path) -> None:
    one, other = of_rank(1, PLAIN).splitlines(True), of_rank(0, GLOO).splitlines(True)
    mixed = [line for pair in zip(one, [*other, *["noise\n"] * 99], strict=False) for line in pair]
    (tmp_path / "slurm-5.out").write_text("start\n" + "".join(mixed) + TABLE)
    found = cause(tmp_path / "slurm-5.out")
    assert (found["rank"], found["node"], found["what"]) == (1, "node7", BAD_BATCH)


def test_sruns_labels_distinguish_ranks_too(tmp_path: Path) -> None:
    lines = [f"{3}: {line}\n" for line in PLAIN.rstrip("\n").split("\n")]
    (tmp_path / "slurm-5.out").write_text("0: hello\n1: hello\n" + "".join(lines))
    assert (cause(tmp_path)["rank"], cause(tmp_path)["what"]) == (3, BAD_BATCH)


def test_a_traceback_without_a_rank_is_the_cause_of_some_rank(tmp_path: Path) -> None:
    (tmp_path / "slurm-5.out").write_text("hello\n" + PLAIN)
    report = report_of_logs(tmp_path / "slurm-5.out")
    assert (report["status"], report["cause"]["rank"]) == ("failed", None)
    first = render(report).splitlines()[0]
    assert first.startswith("slurm-5.out FAILED: some rank: ValueError: bad batch 42")
    assert "at /w/boom.py:10 in main" in render(report)


def test_no_logs_at_all_are_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--logs", str(tmp_path)]) == 2
    assert "expected torchrun's logs" in capsys.readouterr().err
    assert main(["--logs", str(tmp_path / "nowhere")]) == 2
    assert main(["--logs", str(tmp_path), "123"]) == 2
    assert main(["--logs", str(tmp_path), "--follow"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_hostile_logs_are_refused_and_named(tmp_path: Path) -> None:
    torchrun(tmp_path, {0: PLAIN, 1: "", 2: ""})
    place = tmp_path / "none_abc/attempt_0"
    (place / "1/stderr.log").unlink()
    (place / "1/stderr.log").symlink_to("/etc/passwd")
    (place / "2/stderr.log").unlink()
    os.mkfifo(place / "2/stderr.log")
    (place / "2/error.json").write_text("[" * 99999)
    report = report_of_logs(tmp_path)
    assert report["cause"]["rank"] == 0
    assert len(report["problems"]) == 3
    assert "root:" not in json.dumps(report)


def test_the_log_directory_of_torchrun_is_found_below_a_jobs_directory(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    torchrun(tmp_path / "logs", {0: "", 1: PLAIN})
    (tmp_path / "slurm-911.out").write_text("srun: error: n1: task 0: Exited with exit code 1\n")
    cause = report_of_logs(tmp_path)["cause"]
    assert cause["rank"] == 1 and cause["what"].startswith("ValueError")


def test_an_output_that_was_written_before_the_ranks_ended_is_not_their_launchers(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    torchrun(tmp_path / "logs", {0: "", 1: PLAIN})
    other = tmp_path / "slurm-8802.out"
    other.write_text(
        "E1124 16:01:14.142000 30227 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)"
        " local_rank: 0 (pid: 30242) of binary: /usr/bin/python\n"
    )
    before = time.time() - 30
    os.utime(other, (before, before))
    cause = report_of_logs(tmp_path / "logs")["cause"]
    assert cause["rank"] == 1 and cause["what"].startswith("ValueError")


@pytest.mark.parametrize(("line", "subject"), [("", "local rank 1"), ("+ torchrun --nnodes=1 train.py\n", "rank 1")])
def test_a_local_rank_is_no_rank_where_the_job_may_have_more_nodes(tmp_path: Path, line: str, subject: str) -> None:
    end = "E1121 10:07:00.461000 700 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: -7) "
    log = tmp_path / "train.log"
    log.write_text(f"{line}step 7 loss 0.1\n{end}local_rank: 1 (pid: 803) of binary: /opt/venv/bin/python\n")
    assert f"FAILED: {subject}: bus error" in render(report_of_logs(log))
