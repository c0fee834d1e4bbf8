"""Ranks that fail alike are judged by the first of them: with the same result as if each had been judged alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftslurm.failures.catalogue import CASCADE, ROWS
from ftslurm.failures.causes import HostResources, OomKills, Space
from ftslurm.report import failed_worker, root_cause
from ftslurm.report import record_patterns as alike_module
from ftslurm.report.decode import rank_error_from
from ftslurm.report.facts import Exc, Frame
from ftslurm.report.failed_worker import UNJUDGED, FailedWorker, judge
from ftslurm.report.fields import Malformed
from ftslurm.report.gathering import gather
from ftslurm.report.reading import parse_json
from ftslurm.report.record_patterns import RecordDecoder
from ftslurm.testing.runs import RunBuilder

TYPES = [
    ("RuntimeError", "builtins"),
    ("DistBackendError", "torch.distributed"),
    ("DistStoreError", "torch.distributed"),
]
TYPES += [
    ("OSError", "builtins"),
    ("ValueError", "builtins"),
    ("OutOfMemoryError", "torch"),
    ("SystemExit", "builtins"),
]
MESSAGES = [
    "[/gloo/tcp/pair.cc:553] Connection closed by peer [10.{a}.{b}.7]:{port}",
    "[/gloo/tcp/pair.cc:553] Connection reset by peer {a}.{b}.1.2",
    "[Errno {errno}] something on 10.1.{a}.{b}:{port}",
    "[Rank {a}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1) ran for {port} milliseconds",
    "NCCL error at rank {a}, ran for {b} ms, Errno {errno}",
    "Timed out after {port}ms waiting for recv operation to complete on rank {a}",
    "TCPStore: Broken pipe to [{a}.{b}.3.4]:{port}, EADDRINUSE",
    "No space left on device 10.{a}.{b}.9",
    "loss is nan on rank {a}",
    "CUDA error: {errno}",
    "DataLoader worker (pid {port}) is killed by signal: Killed.",
    "version 1.{a}.{b}.{errno} failed",
]
FILES = ["/w/train.py", "/v/site-packages/torch/distributed/distributed_c10d.py", "/usr/lib/python3.11/argparse.py"]


def exception(chance: random.Random, deep: bool = True) -> Exc:
    name, module = chance.choice(TYPES)
    numbers = {"a": chance.randrange(256), "b": chance.randrange(256), "port": chance.randrange(65536)}
    text = chance.choice(MESSAGES).format(**numbers, errno=chance.choice([5, 28, 98, 104]))
    frames = (Frame(chance.choice(FILES), chance.randrange(99), "f", None),)
    link = exception(chance, deep=False) if deep and chance.random() < 0.2 else None
    notes = ("a note",) if chance.random() < 0.05 else ()
    return Exc(name, module, text, frames, link, explicit=chance.random() < 0.5, notes=notes)


def failed(chance: random.Random) -> FailedWorker:
    around = HostResources(
        OomKills(chance.randrange(2), 1), spaces=(Space("/dev/shm", chance.randrange(2) * 10**9, 10**10),)
    )
    return FailedWorker(
        rank=chance.randrange(99),
        node="n1",
        host=None,
        local_rank=0,
        time_ns=1,
        kind=chance.choice([*["exception"] * 9, "signal"]),
        exit_code=chance.choice([*[1] * 9, 2, 137]),
        signal=chance.choice([*[None] * 9, "SIGKILL"]),
        core_dumped=False,
        step=chance.choice([None, 5]),
        argv=(),
        exception=exception(chance),
        frames=(),
        traceback=None,
        stacks=None,
        evidence=(),
        cause=UNJUDGED,
        what="ended",
        life_s=chance.choice([None, 3.0, 9000.0]),
        host_resources=around if chance.random() < 0.5 else None,
        sections=(("data", 3.0),) if chance.random() < 0.2 else (),
        scheduler=chance.choice([*[""] * 9, "CANCELLED", "OUT_OF_MEMORY"]),
        cuda=(("allocated", 10**9),) if chance.random() < 0.2 else (),
        exit_message=chance.choice([*[""] * 4, "giving up on rank 3"]),
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_quick_verdict_is_the_slow_one(seed: int) -> None:
    chance = random.Random(seed)
    failed_worker._cascades.clear()
    quick = 0
    for number in range(2000):
        one = failed(chance)
        key = failed_worker._cascade_key(one)
        quick += key is not None and key in failed_worker._cascades
        fast, slow = judge(one, (), ROWS), failed_worker._judge(one, (), ROWS)
        assert fast == slow, f"seed {seed}, {number}: {one}"
        assert slow.cause.role != CASCADE or fast.lines == slow.lines
    assert quick > 25, "the quick way was hardly tried"


def test_added_causes_are_asked_about_each_rank() -> None:
    rows = (replace(ROWS[-1], name="odd-port", matches=lambda e: e.message.endswith("1")), *ROWS)
    one = failed(random.Random(1))
    text = "[/gloo/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:"
    for last, cause in (("2", "peer-reset"), ("1", "odd-port"), ("4", "peer-reset")):
        raised = Exc("RuntimeError", "builtins", text + last, (), None)
        assert judge(replace(one, kind="exception", exception=raised), (), rows).cause.name == cause


def test_the_verdict_on_a_rank_is_reached_once_for_the_same_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(tmp_path, nodes=4).round().fail(3, ValueError("boom"))
    for rank in (0, 1, 2):
        run.fail(rank, RuntimeError("[gloo/x] Connection closed by peer"))
    snapshot = gather(run.stop().write(), now_ns=1)
    calls: list[int] = []

    def counted(s: FailedWorker, *more: Any) -> FailedWorker:
        calls.append(s.rank)
        return judge(s, *more)

    monkeypatch.setattr(root_cause, "judge", counted)
    first, again = root_cause.failed_workers(snapshot, 1), root_cause.failed_workers(snapshot, 1)
    assert first == again
    assert set(calls) <= {3}, "only the one whose output was read may be judged again"
    files = snapshot.rounds[0]
    other = replace(files.errors[0], message="x", exception=Exc("ValueError", "builtins", "x", (), None))
    changed = replace(snapshot, rounds=(replace(files, errors={**files.errors, 0: other}),))
    assert next(s for s in root_cause.failed_workers(changed, 1) if s.rank == 0).what == "ValueError: x"


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1], {"a": 1}, 2**70])
def test_frames_that_only_look_alike_are_kept_apart(value: Any) -> None:
    def frame(line: object) -> Frame:
        raw = {"file": "/w/kept-apart.py", "line": line, "function": "f", "source": None}
        error = {"schema": "ftslurm/error", "version": 1, "exception": {"type": "E", "frames": [raw]}}
        exception = rank_error_from({"message": "m", "ftslurm": error}, 0).exception
        assert exception is not None
        return exception.frames[0]

    assert frame(1).line == 1
    assert frame(value).line == 0
    assert frame(1).line == 1


def record(chance: random.Random) -> bytes:
    """Return an error record in which anything may be a little or very odd."""
    frames = [{"file": "/w/train.py", "line": 42, "function": "f", "source": "x = 1"}]
    exception: Any = {"type": "RuntimeError", "module": "builtins", "message": text(chance), "frames": frames}
    exception |= {"notes": [], "cause": None, "context": None, "exceptions": []}
    ours: dict[str, Any] = {"schema": "ftslurm/error", "version": 1, "time_ns": 1772366400000000000 + number(chance)}
    ours |= {"kind": "exception", "rank": number(chance), "pid": number(chance), "node": f"n{number(chance)}"}
    ours |= {"step": chance.choice([5, 6, 6, None]), "local_rank": 1, "argv": ["train.py", "--lr", "0.1"]}
    ours |= {"exception": exception, "exit_code": chance.choice([*[1, 2] * 9, 1.5, -1]), "host": "h1", "stacks": None}
    if chance.random() < 0.5:
        oom = {"recent": chance.randrange(3), "in_round": 4, "source": "memory.events"}
        ours["host_resources"] = {"oom": oom, "spaces": [{"path": "/dev/shm", "free": number(chance), "total": 10**6}]}
        ours["shm"] = [number(chance), 10**6]
    extra = {"timestamp": str(number(chance)), "py_callstack": f'  File "a", line {number(chance)}\nRuntimeError\n'}
    value: Any = {"message": {"message": text(chance), "errorCode": 1, "extraInfo": extra}, "ftslurm": ours}
    if chance.random() < 0.1:
        odd = chance.choice([["ftslurm", "pid"], ["ftslurm", "node"], ["message", "message"], ["ftslurm", "exception"]])
        value[odd[0]][odd[1]] = chance.choice([None, True, 1.5, "7", [7], {"message": "7"}, 10**19, "", -7])
    if chance.random() < 0.1:
        del value["ftslurm"]["time_ns"]
    data = json.dumps(value, ensure_ascii=chance.random() < 0.5)
    if chance.random() < 0.1:
        data = data.replace(
            '"pid": ', chance.choice(['"pid": 0', '"rank": 3, "pid": ', '"pid": -', '"pid": 1, "pid": '])
        )
    if chance.random() < 0.05:
        data = data[: chance.randrange(len(data))]
    return data.encode("utf-8", "surrogatepass")


def number(chance: random.Random) -> int:
    return int(chance.choice([*range(40, 60), 7, 0]))


def text(chance: random.Random) -> str:
    word = chance.choice(["a", "a", "a", "é", 'b"{', "x\\"])
    return f"[Errno {chance.choice([28, 32])}] {word} peer {number(chance)}: \n5"


@pytest.mark.parametrize("seed", range(6))
def test_a_record_like_an_earlier_one_is_decoded_as_the_parser_would(seed: int) -> None:
    chance, alike, quick = random.Random(seed), RecordDecoder(), 0
    for at in range(4000):
        data = record(chance)
        pattern = alike._patterns.get(data.translate(alike_module._MASK))
        quick += pattern is not None and pattern.error(data, 3) is not None
        expected: Any
        found: Any
        try:
            expected = rank_error_from(parse_json(data), 3)
        except Malformed as error:
            expected = str(error)
        try:
            found = alike.error(data, 3)
        except Malformed as error:
            found = str(error)
        assert found == expected, f"seed {seed}, {at}: {data!r}"
        assert repr(found) == repr(expected)
    assert quick > 300, "the quick way was hardly tried"
