"""Logs of any size, coding and shape: what is read of them, and how their lines are labelled."""

from __future__ import annotations

import gzip
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.report.command import main
from ftslurm.report.logs.files import Output, outputs
from ftslurm.report.logs.lines import GAP, Line, cleaned, labelled, lines_of, streams
from ftslurm.report.logs.reading import BLOCK, CHUNK, Excerpt, read_chunks
from ftslurm.report.logs.success import says_completed
from ftslurm.report.logs.tracebacks import tracebacks
from ftslurm.report.logs.untangle import untangled
from ftslurm.report.pipeline import report_of_logs
from ftslurm.report.text import render

TRACEBACK = """\
Traceback (most recent call last):
  File "/w/train.py", line 8, in <module>
    main()
  File "/w/model.py", line 41, in main
    raise ValueError("bad batch")
ValueError: bad batch
"""
STEP = b"rank 3 step 1200 loss 2.7182 tokens/s 123456\n"


def chunked(data: bytes, size: int = CHUNK) -> Iterator[bytes]:
    stream = io.BytesIO(data)
    return iter(lambda: stream.read(size), b"")


def text_of(excerpt: Excerpt) -> str:
    return "".join(part.text for part in excerpt.parts)


@pytest.mark.parametrize("size", [CHUNK, BLOCK - 1, 1000])
def test_of_a_large_log_both_ends_and_the_interesting_lines_are_kept_in_bounded_memory(size: int) -> None:
    steps = STEP * (8_000_000 // len(STEP))
    data = b"the first line\n" + steps + b"[rank5]: " + TRACEBACK.encode() + steps + b"the last line\n"
    excerpt = read_chunks(chunked(data, size))
    text = text_of(excerpt)
    assert excerpt.size == len(data)
    assert text.startswith("the first line\n")
    assert text.endswith("the last line\n")
    assert TRACEBACK in text
    assert len(text) < 2_000_000
    assert [part.gap > 0 for part in excerpt.parts] == [False, True, True]
    # Each part has whole lines only.
    assert all(line.startswith(("rank 3", "the ", "[rank5]", " ", "Tra", "Val")) for line in text.splitlines())


def test_a_log_full_of_interesting_lines_keeps_the_first_and_the_last_ones() -> None:
    data = b"".join(b"srun: error: number %d\n" % i + STEP * 400 for i in range(2000))
    text = text_of(read_chunks(chunked(data)))
    assert "number 5\n" in text
    assert "number 1999\n" in text
    assert len(text) < 4_000_000


@pytest.mark.parametrize("coding", ["utf-8", "utf-16", "utf-16-le", "latin-1"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_coding_of_a_log_does_not_matter(coding: str, ends: str, packed: bool) -> None:
    data = ("hello\n" * 40 + TRACEBACK).replace("\n", ends).encode(coding)
    data = gzip.compress(data[:500]) + gzip.compress(data[500:]) if packed else data
    (found,) = tracebacks(lines_of(read_chunks(chunked(data, 777))))
    assert (found.headline, found.traceback) == ("ValueError: bad batch", TRACEBACK)


def test_a_damaged_archive_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out.gz"
    whole = gzip.compress(STEP * 3000 + os.urandom(60_000).hex().encode() + b"\n" + STEP)
    path.write_bytes(whole[: len(whole) // 2])
    report = report_of_logs(path)
    assert report["cause"] is None
    assert "ends early or is damaged" in report["problems"][0]["reason"]


def test_what_a_terminal_needs_is_taken_out_and_what_a_progress_bar_hides_is_kept() -> None:
    text = "\x1b[31mred\x1b[0m\x1b]0;title\x07 one\r 50%|##  |\rtwo\x00\x01\n99%|###|"
    text += "[rank3]: Traceback (most recent call last):\n"
    expected = ["red one", " 50%|##  |", "two", "99%|###|", "[rank3]: Traceback (most recent call last):"]
    assert cleaned(text) == expected


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["0: a", "1: b", "0: c", "1: d"], [Line("a", 0, task=0), Line("b", 1, task=1)]),
        (["12: a"] * 4, [Line("a", 0, task=12)]),
        (["1: counted", "2: counted", "3: counted", "4: counted"], [Line("1: counted", 0)]),
        (["[rank3]: a", "x", "y"], [Line("a", 0, rank=3), Line("x", 1)]),
        (["[default3]:  a", "x"], [Line("  a", 0, local=3), Line("x", 1)]),
        (["[1,3]<stderr>:a"], [Line("a", 0, task=3)]),
        (["gpu7: a", "gpu8: b", "gpu7: c", "gpu8: d"], [Line("a", 0, node="gpu7"), Line("b", 1, node="gpu8")]),
        (["Epoch: 1", "Epoch: 2", "Epoch: 3"], [Line("Epoch: 1", 0)]),
        (["(train pid=71, ip=10.0.0.2) a"], [Line("a", 0, node="10.0.0.2 pid 71")]),
    ],
)
def test_labels_are_taken_from_the_lines(texts: list[str], labels: list[Line]) -> None:
    assert labelled(texts)[: len(labels)] == labels


def test_the_labels_of_a_later_attempt_are_its_own() -> None:
    texts = ["plain"] * 50 + [
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO JOB REQUEUE ***"
    ]
    lines = labelled([*texts, "0: a", "1: b", "0: c", "1: d"])
    assert [line.task for line in lines[-4:]] == [0, 1, 0, 1]


def test_a_part_that_was_left_out_is_a_line_in_every_stream() -> None:
    lines = labelled(["[rank0]: a", "[rank1]: b", GAP, "[rank0]: c"])
    assert [[line.text for line in own] for own in streams(lines).values()] == [["a", GAP, "c"], ["b", GAP]]


@pytest.mark.parametrize("order", ["0" * 6 + "1" * 6, "01" * 6, "001101100110", "010011100101"])
def test_tracebacks_between_each_other_are_sorted_out(order: str) -> None:
    other = TRACEBACK.replace("model.py", "data.py").replace("bad batch", "bad shard")
    sources = {"0": TRACEBACK.splitlines(), "1": other.splitlines()}
    mixed = labelled([sources[each].pop(0) for each in order])
    found = tracebacks(mixed)
    assert sorted(each.headline for each in found) == ["ValueError: bad batch", "ValueError: bad shard"]
    assert len(untangled(mixed)) == len(mixed)


def test_lines_of_others_within_a_traceback_do_not_end_it() -> None:
    lines = TRACEBACK.splitlines()
    mixed = [lines[0], "step 1 loss 3", lines[1], lines[2], "Epoch: 3", *lines[3:5], "step 2 loss 3", lines[5]]
    (found,) = tracebacks(labelled(mixed))
    assert (found.headline, found.exception.frames[-1].line) == ("ValueError: bad batch", 41)


def test_lines_that_two_ranks_wrote_in_parts_are_understood() -> None:
    lines = [line for line in TRACEBACK.splitlines()[:-1] for _ in range(2)]
    torn = [*lines, "ValueErrorValueError: bad batch: ", "bad batch"]
    (found,) = tracebacks(labelled(torn))
    assert (found.headline, found.exception.frames[-1].line) == ("ValueError: bad batch", 41)


def test_of_a_directory_the_newest_jobs_files_are_read(tmp_path: Path) -> None:
    for i, name in enumerate(["slurm-7.out", "slurm-8.out", "slurm-8.err", "notes.txt"]):
        (tmp_path / name).write_text("x\n")
        os.utime(tmp_path / name, (1000 + i, 1000 + i))
    os.utime(tmp_path / "notes.txt", (1, 1))
    assert [each.path.name for each in outputs(tmp_path)] == ["slurm-8.out", "slurm-8.err"]


FAMILIES = {
    "hosts": ("gpu11.log gpu12.log gpu13.log", "- - -"),
    "hosts that count from 1": ("as1.log as2.log as3.log", "- - -"),
    "submitit": ("9_0_log.out 9_0_log.err 9_1_log.err", "0 0 1"),
    "tasks or an array": ("slurm-9_0.out slurm-9_1.out", "- -"),
    "tasks of a job": ("job-771_0.out job-771_1.out job-771_2.out", "0 1 2"),
    "streams": ("train_9771_n1_0.out train_9771_n1_0.err train_9771_n1_1.err", "n1/0 n1/0 n1/1"),
    "local ranks of nodes": ("t-771-n1-0.err t-771-n1-1.err t-771-n2-0.err", "n1/l0 n1/l1 n2/l0"),
    "only numbers": ("log.0 log.1 log.2", "0 1 2"),
    "plain texts": ("out_0.txt out_1.txt", "0 1"),
    "nodes": ("node0.log node1.log", "node0 node1"),
    "nodes that do not count": ("771-nid003.out 771-nid117.out", "nid003 nid117"),
    "hosts of different names": ("771.cn-a-04.err 771.gpu-07.err", "- -"),
    "the job and its tasks": ("slurm-771.out 771_0.err 771_1.err", "0 1 -"),
    "folders": ("771/rank0/stderr 771/rank1/stderr 771/rank1/stdout", "0 1 1"),
    "local ranks": ("local_rank0.log local_rank1.log", "l0 l1"),
    "ranks and what started them": ("main.log rank_0.log rank_1.log", "0 1 -"),
    "tasks of nodes and the batch script": ("slurm-7.out gpunode1-0.log gpunode2-1.log", "0 1 -"),
    "Paddle's": ("launch.log workerlog.0 workerlog.1", "0 1 -"),
    "nodes behind the stream": ("out.n1 out.n2", "n1 n2"),
}
BELOW = {
    "the ranks' folder beside the job's output": ("job-88.out logs/rank_0.log logs/rank_1.log", 3),
    "a tool's own folder": ("job-88.out wandb/debug.log", 1),
    "an older folder": ("logs/rank_0.log logs/rank_1.log job-88.out", 1),
}
OTHERS = {
    "older jobs": ("slurm-7.out slurm-8.out", "slurm-8.out"),
    "numbered runs": ("run1.log run2.log", "run2.log"),
    "tasks of an older job": ("job-771_0.out job-771_1.out job-772_0.out job-772_1.out", "job-772_0.out job-772_1.out"),
    "dates": ("2026-11-20_train.log 2026-11-21_train.log", "2026-11-21_train.log"),
    "runs of a day": ("train_20261121_090000.log train_20261121_180000.log", "train_20261121_180000.log"),
    "runs numbered with zeros": ("run.0001.out run.0002.out", "run.0002.out"),
    "months and days": ("train.0412.log train.0413.log", "train.0413.log"),
    "other programs": ("eval.log train.log", "train.log"),
    "texts beside jobs": ("slurm-5001.out slurm-5002.out notes.txt", "slurm-5002.out"),
    "rotated": ("train.log.2 train.log.1 train.log", "train.log"),
}


def written(folder: Path, names: str, text: str = "x\n") -> None:
    for i, name in enumerate(names.split()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        os.utime(folder / name, (1000 + i, 1000 + i))


def shown(each: Output) -> str:
    number = f"l{each.local}" if each.local is not None else str(each.task) if each.task is not None else ""
    return "/".join(part for part in (each.node or "", number) if part) or "-"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_files_of_all_ranks_of_a_job_are_read_and_known_by_their_names(tmp_path: Path, name: str) -> None:
    names, labels = FAMILIES[name]
    written(tmp_path, names)
    found = outputs(tmp_path, depth=2)
    assert sorted(str(each.path.relative_to(tmp_path)) for each in found) == sorted(names.split())
    assert [shown(each) for each in found] == labels.split()


@pytest.mark.parametrize("name", BELOW)
def test_the_ranks_own_files_below_a_jobs_output_are_read_too(tmp_path: Path, name: str) -> None:
    names, number = BELOW[name]
    written(tmp_path, names)
    if name == "an older folder":
        os.utime(tmp_path / "job-88.out", (5000, 5000))
    assert len(outputs(tmp_path, depth=2)) == number


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_jobs_are_not_read(tmp_path: Path, name: str) -> None:
    names, read = OTHERS[name]
    written(tmp_path, names)
    assert [each.path.name for each in outputs(tmp_path)] == read.split()
    text = " ".join(render(report_of_logs(tmp_path)).split())
    assert "not read, as of other jobs: " in text or "not read, perhaps of another run or program" in text


def test_one_file_of_many_names_its_siblings(tmp_path: Path) -> None:
    written(tmp_path, "job-771_0.out job-771_1.out job-771_2.out job-772_0.out", "step 1\n")
    (tmp_path / "job-771_2.out").write_text(TRACEBACK)
    text = " ".join(render(report_of_logs(tmp_path / "job-771_0.out")).split())
    expected = (
        "2 files beside it have a name as of the same job (job-771_1.out, job-771_2.out): if so, name the directory"
    )
    assert expected in text
    for name in ("job-772_0.out",):
        (tmp_path / name).unlink()
    assert report_of_logs(tmp_path)["cause"]["rank"] == 2


def test_files_that_begin_alike_are_no_attempts(tmp_path: Path) -> None:
    head = "Loading modules\nPython 3.11\nhost ready\n"
    (tmp_path / "node0.log").write_text(f"{head}step 1\n{TRACEBACK}")
    (tmp_path / "node1.log").write_text(f"{head}step 1\nsrun: error: n2: task 1: Exited with exit code 1\n")
    report = report_of_logs(tmp_path)
    assert len(report["rounds"]) == 1
    assert report["cause"]["what"] == "ValueError: bad batch"


def test_a_pipe_is_read_and_the_exit_code_shows_whether_there_was_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = tmp_path / "good.out", tmp_path / "bad.out"
    good.write_text("step 1\ndone\n")
    bad.write_text("step 1\n" + TRACEBACK)
    assert main(["--logs", str(good), "--exit-code"]) == 0
    assert main(["--logs", str(bad), "--exit-code"]) == 1
    assert main(["--logs", str(bad)]) == 0
    assert main(["--logs", str(tmp_path / "none.out"), "--exit-code"]) == 2
    capsys.readouterr()
    read, write = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(write, bad.read_bytes()), os.close(write)))
    writer.start()
    monkeypatch.setattr("sys.stdin", os.fdopen(read))
    assert main(["--logs", "-", "--exit-code"]) == 1
    writer.join()
    assert capsys.readouterr().out.startswith("stdin FAILED: some rank: ValueError: bad batch\n")


def test_a_link_that_the_user_names_is_followed(tmp_path: Path) -> None:
    (tmp_path / "slurm-7.out").write_text(TRACEBACK)
    (tmp_path / "latest").symlink_to("slurm-7.out")
    assert report_of_logs(tmp_path / "latest")["cause"]["what"] == "ValueError: bad batch"


@pytest.mark.parametrize(
    ("outer", "inner", "label"),
    [
        ("{t}: ", "[rank{r}]: ", {"task": 2, "rank": 2}),
        ("n{t}: ", "[rank{r}]: ", {"node": "n2", "rank": 2}),
        ("n{t}: {t}: ", "[rank{r}]: ", {"node": "n2", "task": 2, "rank": 2}),
        ("[default{t}]:", "[rank{r}]: ", {"local": 2, "rank": 2}),
        ("{t}: [default{t}]: ", "[rank{r}]: ", {"task": 2, "local": 2, "rank": 2}),
        ("2026-11-21T10:00:00.123Z {t}: ", "[rank{r}]: ", {"task": 2, "rank": 2}),
        ("trainer-{t} pytorch ", "[rank{r}]: ", {"node": "trainer-2", "rank": 2}),
        ("worker-{t}  | ", "[rank{r}]: ", {"node": "worker-2", "rank": 2}),
        ("rank{t} | ", "", {"rank": 2}),
        ("[{t}] ", "[rank{r}]: ", {"task": 2, "rank": 2}),
        ("2026-11-21 10:00:00,123 ", "[rank{r}]: ", {"rank": 2}),
    ],
)
def test_labels_nest(outer: str, inner: str, label: dict[str, object]) -> None:
    both = outer + inner
    text = "".join(f"{both.format(t=t, r=t)}step {i}\n" for i in range(3) for t in (0, 2))
    text += "".join(f"{both.format(t=2, r=2)}{line}" for line in TRACEBACK.splitlines(True))
    lines = labelled(cleaned(text))
    own = next(each for each in streams(lines).values() if each[0].rank == 2)
    assert {name: getattr(own[0], name) for name in label} == label
    (found,) = tracebacks(own)
    assert (found.headline, found.traceback) == ("ValueError: bad batch", TRACEBACK)


def test_a_few_lines_have_labels_if_srun_proves_it() -> None:
    ends = "srun: error: n3: task 6: Aborted"
    assert labelled(["6: Memory access fault by GPU node-6", ends])[0].task == 6
    assert labelled(["6: Memory", "0: slurmstepd: error: *** STEP 4.0 ON n0 ENDED ***"])[0].task == 6
    assert labelled(["7: Memory access fault by GPU node-6", ends])[0].task is None


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("Training complete. Saved final model to /ckpt/final", True),
        ("[2026-11-20 10:00:00] INFO train.py:88: training finished in 3:00:11", True),
        ("=> All done", True),
        ("finished", True),
        ("Epoch 3 finished", False),
        ("finished loading the dataset", False),
        ("done with errors", False),
        ("Job finished with exit code 1", False),
        ("Training failed", False),
        ("not done", False),
    ],
)
def test_a_program_says_that_it_has_done_its_work(text: str, completed: bool) -> None:
    assert says_completed(text) is completed


def test_an_exception_in_stderr_was_caught_if_stdout_ends_with_success(tmp_path: Path) -> None:
    (tmp_path / "train-7.err").write_text(TRACEBACK)
    (tmp_path / "train-7.out").write_text("step 1\nTraining finished\n")
    assert report_of_logs(tmp_path)["cause"] is None
    # The batch script's own output.
    (tmp_path / "train-7.out").write_text("step 1\nstep 2\nJob finished at Fri Nov 21\nDone\n")
    assert report_of_logs(tmp_path)["cause"]["what"] == "ValueError: bad batch"


def test_a_ranks_lines_with_and_without_torchs_label_are_one_output(tmp_path: Path) -> None:
    watchdog = (
        "[E1121 10:10:31.10 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: Work"
    )
    abort = "terminate called after throwing an instance of 'c10::DistBackendError'"
    (tmp_path / "rank_0.err").write_text(f"[rank0]:{watchdog}\n{abort}\n")
    (tmp_path / "rank_1.err").write_text(TRACEBACK)
    assert report_of_logs(tmp_path)["cause"]["rank"] == 1
