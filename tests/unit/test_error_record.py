"""The error record, apart from any process: its form, its bounds, and what a damaged one still contains."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from ftslurm.dataclasses import replace
from ftslurm.failures import exceptions, recordfile
from ftslurm.failures.record import (
    complete,
    complete_elsewhere,
    encode,
    exit_status,
    from_exception,
    identity,
    merge,
    one_line,
    read,
    summary,
    write,
)
from ftslurm.failures.recorder import Recorder
from ftslurm.records.codec import BadFile
from ftslurm.records.error import ErrorRecord, Frame, HostResources, OomKills, Space, error_file, error_record_in

WORKER = ErrorRecord("exception", 5_000_000_001, rank=3, round=2, node="n1", local_rank=1)
EXITED, KILLED, CRASHED = (
    replace(WORKER, exit_code=1),
    replace(WORKER, signal="SIGKILL"),
    replace(WORKER, signal="SIGSEGV"),
)
TORCH: dict[str, Any] = {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "T", "timestamp": "4"}}}


def caught(raising: Any) -> tuple[BaseException, TracebackType | None]:
    """Return what `raising()` raises, and its traceback without this function's frame."""
    try:
        raising()
    except BaseException as error:
        return error, error.__traceback__ and error.__traceback__.tb_next
    raise AssertionError


def record_of(raising: Any, previous: dict[str, Any] | None = None) -> ErrorRecord:
    error, trace = caught(raising)
    return from_exception(error, trace, WORKER, None if previous is None else error_record_in(previous, "it")[0])


def exception_of(raising: Any) -> Any:
    return record_of(raising).exception


def raises(error: BaseException) -> Any:
    def f() -> None:
        raise error

    return f


def test_a_workers_identity_comes_from_its_environment() -> None:
    environment = {"FTSLURM_RUN_ID": "r", "FTSLURM_ATTEMPT": "7.0", "FTSLURM_ROUND": "2", "FTSLURM_NODE": "n1"}
    environment |= {"RANK": "3", "LOCAL_RANK": "x", "WORLD_SIZE": ""}
    assert identity(environment) == {
        "run_id": "r",
        "attempt": "7.0",
        "round": 2,
        "node": "n1",
        "rank": 3,
        "local_rank": None,
        "world_size": None,
    }


def test_a_record_has_torchs_form_outside_and_ours_inside() -> None:
    file = error_file(record_of(raises(ValueError("boom"))))
    assert set(file) == {"message", "ftslurm"}
    assert file["message"]["message"] == "ValueError: boom"
    assert file["message"]["extraInfo"]["timestamp"] == "5"
    assert "errorCode" not in file["message"]
    assert file["message"]["extraInfo"]["py_callstack"].endswith("ValueError: boom\n")
    assert (file["ftslurm"]["schema"], file["ftslurm"]["kind"]) == ("ftslurm/error", "exception")
    assert not {"message", "traceback", "foreign"} & set(file["ftslurm"])


@pytest.mark.parametrize(
    ("code", "status"),
    [(None, 0), (0, 0), (3, 3), (256, 0), (-1, 255), (True, 1), ("text", 1), ((), 1), (2**70, 255), (1.5, 1)],
)
def test_the_exit_status_of_a_system_exit_is_the_interpreters(code: object, status: int) -> None:
    assert exit_status(SystemExit(code)) == status


def test_a_system_exit_is_of_kind_exit_and_has_the_place() -> None:
    record = record_of(lambda: sys.exit(3))
    assert record.kind == "exit"
    assert record.exit_code == error_file(record)["message"]["errorCode"] == 3
    assert record.message.startswith("SystemExit: 3 (at test_error_record.py:")


def test_cause_and_context_are_reported_as_python_shows_them() -> None:
    def with_cause() -> None:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("b") from error

    def with_context() -> None:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b")  # noqa: B904

    def with_neither() -> None:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b") from None

    cause, context, neither = (exception_of(f) for f in (with_cause, with_context, with_neither))
    assert (cause.cause.type, cause.context) == ("KeyError", None)
    assert (context.cause, context.context.type) == (None, "KeyError")
    assert (neither.cause, neither.context, neither.hidden) == (None, None, "KeyError: 'a'")


def test_exceptions_that_refer_to_each_other_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    cause = exceptions.describe(first, None).cause
    assert cause is not None
    assert (cause.message, cause.cause) == ("b", None)


def test_a_long_chain_is_cut_after_eight_links() -> None:
    last = ValueError("0")
    for number in range(1, 30):
        error = ValueError(str(number))
        error.__cause__ = last
        last = error
    record = replace(WORKER, exception=exceptions.describe(last, None))
    assert error_record_in(error_file(record), "it") == (record, None), "what the codec reads is at least as deep"
    described, links = exceptions.describe(last, None), 0
    while described.cause is not None:
        described, links = described.cause, links + 1
    assert links == 8


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups are new in 3.11")
def test_a_bush_of_groups_stays_bounded() -> None:
    def group(depth: int) -> Any:
        kind: Any = __builtins__["ExceptionGroup"]  # type: ignore[index]
        return kind("g", [group(depth - 1) for _ in range(6)]) if depth else ValueError("leaf")

    described = exceptions.describe(group(5), None)
    count, todo = 0, [described]
    while todo:
        count, one = count + 1, todo.pop()
        todo += one.exceptions
    assert count == 64


def test_of_many_frames_the_first_and_the_last_are_kept() -> None:
    def f(n: int) -> None:
        if n == 0:
            raise ValueError
        f(n - 1)

    exception = exception_of(lambda: f(300))
    assert len(exception.frames) == 100
    assert exception.frames_left_out == 202
    assert exception.frames[0].function == "<lambda>"
    assert exception.frames[-1].source == "raise ValueError"


def test_a_syntax_error_has_the_place_in_the_text() -> None:
    error, _ = caught(lambda: compile("x = = 1\n", "/a/b.py", "exec"))
    assert exceptions.describe(error, None).frames == (Frame("/a/b.py", 1, "<module>", "x = = 1"),)


class Hostile(Exception):
    """Everything that is asked of it raises, or is of a wrong type."""

    __notes__ = 5
    exceptions = 7

    def __str__(self) -> str:
        raise SystemExit(1)

    def __repr__(self) -> str:
        raise KeyboardInterrupt


def test_an_exception_that_cannot_be_printed_is_still_recorded() -> None:
    record = record_of(raises(Hostile()))
    assert record.message == "Hostile: <unprintable Hostile object>"
    assert error_record_in(json.loads(encode(record)), "it") == (record, None)


def test_text_that_utf8_cannot_hold_is_escaped() -> None:
    record = record_of(raises(ValueError("a\udcffb")))
    assert record.exception is not None
    assert record.exception.message == "a\\udcffb"
    json.dumps(error_file(record), ensure_ascii=False).encode()


def test_torchs_record_of_the_same_exception_is_kept_within_ours() -> None:
    extra = {**TORCH["message"]["extraInfo"], "host": "n9"}
    torch = {"more": 1, "message": {**TORCH["message"], "errorCode": 9, "extraInfo": extra}}
    file = error_file(record_of(raises(ValueError("x")), torch))
    assert (file["more"], file["message"]["errorCode"], file["message"]["extraInfo"]["host"]) == (1, 9, "n9")
    assert file["message"]["extraInfo"]["timestamp"] == "5"
    assert "foreign" not in file["ftslurm"]


def test_an_older_record_of_another_exception_is_kept_beside_ours() -> None:
    record = record_of(raises(KeyError("new")), TORCH)
    assert record.message == "KeyError: 'new'"
    assert record.reported_before == {"message": "ValueError: x", "py_callstack": "T"}


def test_an_exit_after_a_recorded_exception_is_reported_by_that_exception() -> None:
    record = record_of(lambda: sys.exit(1), TORCH)
    assert record.message == "ValueError: x"
    assert record.traceback.startswith("T\n")
    assert record.exception is not None
    assert record.exception.type == "SystemExit"


def test_any_record_fits_into_the_bound() -> None:
    for seed in range(30):
        chance = random.Random(seed)

        def text(chance: random.Random = chance) -> str:
            return chance.choice("a\u00e9\U0001f600\0") * chance.choice((3, 2000, 100_000))

        error: BaseException = ValueError(text())
        for _ in range(chance.randrange(12)):
            outer = RuntimeError(text())
            outer.__cause__ = error
            error = outer
        worker = replace(WORKER, argv=tuple(text() for _ in range(40)), stacks=text())
        file = {"message": {"message": text(), "extraInfo": {"x": text()}}, "y": [text()]}
        previous = error_record_in(file, "it")[0]
        record = from_exception(error, None, worker, chance.choice((None, previous)))
        data = encode(record)
        assert len(data) < recordfile.SIZE_LIMIT, f"seed {seed}"
        assert json.loads(data)["message"]["message"], f"seed {seed}"
        assert error_record_in(json.loads(data), "it")[1] is None, f"seed {seed}"


def test_what_nests_without_end_is_dropped_and_the_record_stays() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    record = replace(WORKER, message="m", foreign={"deep": deep})
    assert json.loads(encode(record))["message"]["message"] == "m"
    del record
    while deep:  # else its deallocation may be what nests too deep
        deep = deep[0]


def test_a_record_goes_to_the_first_directory_that_takes_it(tmp_path: Path) -> None:
    record = replace(WORKER, kind="exit", message="m")
    path = write(record, [str(tmp_path / "missing"), str(tmp_path)])
    assert path == str(tmp_path / "error.json")
    assert read(tmp_path) == (record, None)
    assert os.listdir(tmp_path) == ["error.json"]
    assert (tmp_path / "error.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError):
        write(record, [str(tmp_path / "missing"), str(tmp_path / "gone")])


def test_what_the_agent_saw_wins_over_what_the_worker_wrote(tmp_path: Path) -> None:
    written = replace(WORKER, message="ValueError: x", traceback="T", rank=99, exit_code=77, step=4, argv=("a",))
    write(replace(written, time_ns=4_000_000_000), [str(tmp_path)])
    record = complete(tmp_path, replace(EXITED, pid=12))
    assert record is not None
    assert summary(record) == {
        "round": 2,
        "node": "n1",
        "rank": 3,
        "local_rank": 1,
        "time_ns": 4_000_000_000,
        "kind": "exception",
        "exit_code": 1,
        "signal": None,
        "step": 4,
        "message": "ValueError: x",
    }
    assert record.recorded_ns == 4_000_000_000
    assert error_file(record)["message"]["errorCode"] == 1
    assert (record.pid, record.argv) == (12, ("a",))


def test_a_record_is_not_later_than_the_end(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text(json.dumps(TORCH))
    record = complete(tmp_path, EXITED)
    assert record is not None
    assert (record.time_ns, record.message, record.traceback) == (EXITED.time_ns, "ValueError: x", "T")


AGENTS = HostResources(OomKills(1, 1), spaces=(Space("/dev/shm", 60, 64, 9, 10), Space("/tmp", 5, 9)), core_limit=0)


def test_the_hosts_resources_are_the_agents_with_what_only_the_worker_could_observe() -> None:
    workers = HostResources(OomKills(9, 9), spaces=(Space("/dev/shm", 2, 64),), own_limit=7)
    merged = merge(replace(WORKER, host_resources=workers), None, "", replace(KILLED, host_resources=AGENTS))
    shm = Space("/dev/shm", 60, 64, 9, 10, least_free=2)
    assert merged.host_resources == replace(AGENTS, spaces=(shm, Space("/tmp", 5, 9)), own_limit=7)
    alone = merge(replace(WORKER, host_resources=workers), None, "", KILLED)
    assert alone.host_resources == workers, "the agent's sampling is disabled"
    assert merge(None, None, "", replace(KILLED, host_resources=AGENTS)).host_resources == AGENTS


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "torn"),
        (b'{"message": {"mess', "torn"),
        (b"\xff\xfe", "torn"),
        (b"[" * 100_000, "torn"),
        (b"x" * (recordfile.SIZE_LIMIT + 1), "larger than"),
        (b"[]", "expected a JSON object, found list"),
        (b'{"message": 5}', "no message"),
        (b'{"message": {"message": 5}}', "no message"),
    ],
)
def test_a_file_that_is_no_record_degrades_to_what_the_agent_saw(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "error.json").write_bytes(content)
    record = complete(tmp_path, KILLED)
    assert record is not None
    assert (record.kind, record.signal) == ("signal", "SIGKILL")
    assert record.message.startswith("killed by SIGKILL (error.json")
    assert why in record.notes[0]
    assert error_file(record)["message"]["errorCode"] == -9


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": "other"},
        {"rank": "3"},
        {"sections": [["a"]]},
        {"version": "1"},
        {"time_ns": None},
        {"time_ns": 10**30},
        {"kind": "odd"},
        {"argv": [1]},
        {"step": "x"},
        {"exception": []},
        {"exception": {"message": "no type"}},
        {"exception": {"type": "E", "frames": [5]}},
        {"exception": {"type": "E", "exceptions": [5]}},
    ],
)
def test_of_a_record_with_a_damaged_inner_part_the_message_is_kept(tmp_path: Path, damage: dict[str, Any]) -> None:
    file = error_file(record_of(raises(ValueError("x"))))
    file["ftslurm"].update(damage)
    (tmp_path / "error.json").write_text(json.dumps(file))
    done = complete(tmp_path, EXITED)
    assert done is not None
    assert done.message.startswith("ValueError: x (error.json: ")
    assert ("ftslurm/error" if "schema" in damage else next(iter(damage))) in done.notes[0]
    assert done.exception is None
    encode(done)


def test_a_record_of_a_newer_version_is_named_so(tmp_path: Path) -> None:
    file = error_file(record_of(raises(ValueError("x"))))
    file["ftslurm"]["version"] = 2
    (tmp_path / "error.json").write_text(json.dumps(file))
    assert "made by a newer ftslurm" in str(read(tmp_path)[1])


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(json.dumps(TORCH))
    (tmp_path / "error.json").symlink_to("secret")
    record, note = read(tmp_path)
    assert record is None
    assert "not readable" in str(note)
    (tmp_path / "error.json").unlink()
    os.mkfifo(tmp_path / "error.json")
    assert "not a regular file" in str(read(tmp_path)[1])
    os.mkfifo(tmp_path / "stacks.txt")
    assert complete(tmp_path, CRASHED) is not None


def test_the_stacks_of_a_crash_have_the_line(tmp_path: Path) -> None:
    stacks = (
        "Fatal Python error: Segmentation fault\n\n"
        'Thread 0x1 (most recent call first):\n  File "/x/other.py", line 3 in wait\n\n'
        'Current thread 0x2 (most recent call first):\n  File "/x/train.py", line 12 in step\n'
        '  File "/x/train.py", line 20 in <module>\n  File "/lib/ftslurm/worker.py", line 9 in main\n'
        '  File "<frozen runpy>", line 88 in _run_code\n\nExtension modules: a (total: 1)\n'
    )
    (tmp_path / "stacks.txt").write_text(stacks)
    record = complete(tmp_path, CRASHED)
    assert record is not None
    assert summary(record)["message"] == "SIGSEGV (segmentation fault) at train.py:12 in step"
    assert record.stacks is not None
    assert "runpy" not in record.stacks
    assert record.stacks.endswith("line 20 in <module>\n\nExtension modules: a (total: 1)\n")
    other = complete(tmp_path, replace(WORKER, exit_code=3))
    assert other is not None
    assert other.stacks is None


def test_a_damaged_message_of_torch_is_still_one_that_torch_can_read() -> None:
    written = error_record_in({"message": {"message": "m", "extraInfo": {"py_callstack": 5, "timestamp": []}}}, "it")[0]
    assert (written.time_ns, written.traceback) == (0, "")
    file = error_file(merge(replace(written, time_ns=4_000_000_000), None, "", EXITED))
    assert file["message"]["extraInfo"] == {"timestamp": "4"}
    text = error_record_in({"message": "just text"}, "it")[0]
    assert summary(merge(text, None, "", EXITED))["message"] == "just text"


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("stamp", ["4", 4])
def test_torchs_own_record_has_the_files_time_or_torchs_whole_seconds(stamp: object, lenient: bool) -> None:
    value = {"message": {"message": "m", "extraInfo": {"timestamp": stamp}}}
    assert error_record_in(value, "it", lenient=lenient) == (ErrorRecord("exception", 4 * 10**9, "m"), None)
    assert error_record_in(value, "it", 7, lenient=lenient) == (ErrorRecord("exception", 7, "m"), None)


@pytest.mark.parametrize("value", [{}, {"message": 5}, {"message": {"message": None}}])
def test_a_file_without_a_message_is_no_error_record(value: object) -> None:
    with pytest.raises(BadFile, match="the file: has no message"):
        error_record_in(value, "the file", lenient=True)


def test_a_summary_is_one_printable_line() -> None:
    assert one_line("a\n\tb\x1b[31mred\x1b[0m\x07\u202ec\x00 ") == "a bred c"
    assert len(one_line("word " * 1000)) <= 500
    assert one_line("begin " + "x" * 501 + " end").startswith("begin")
    assert one_line("begin " + "x" * 501 + " end").endswith("end")


# A record that the worker could not leave on its node

IN_RUN = replace(EXITED, attempt="7.0", message="ValueError: x", traceback="T", time_ns=4)


def test_a_record_in_the_run_directory_is_completed_by_what_the_agent_saw(tmp_path: Path) -> None:
    write(replace(IN_RUN, pid=12), [str(tmp_path)])
    record = complete_elsewhere(tmp_path, "", replace(EXITED, attempt="7.0", pid=11, host_resources=AGENTS))
    assert record is not None
    assert record.message == "ValueError: x"
    assert (record.recorded_ns, record.pid, record.host_resources) == (4, 11, AGENTS)


@pytest.mark.parametrize(
    "other", [{"round": 9}, {"attempt": "7.1"}, {"rank": 4}, {"kind": "hang"}, {"stopped_by_ftslurm": False}]
)
def test_a_record_of_another_worker_or_of_an_agent_is_not_taken_for_this_ones(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    write(replace(IN_RUN, **other), [str(tmp_path)])
    assert complete_elsewhere(tmp_path, "", IN_RUN) is None


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"message": "torch wrote this"}'])
def test_where_there_is_none_what_the_agent_saw_stands(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "error.json").write_bytes(content)
    assert complete_elsewhere(tmp_path, "", IN_RUN) is None


class Interrupted(ValueError):
    """An exception during whose recording a handler of signals raises once."""

    handled = 0

    @property
    def __notes__(self) -> list[str]:
        type(self).handled += 1
        if self.handled == 1:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error.")
        return ["a note"]


def test_a_handler_of_signals_that_raises_while_a_failure_is_recorded_does_not_prevent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FTSLURM_RECORD_DIR", str(tmp_path))
    Recorder(["train.py"]).exception(Interrupted("boom"), None)
    found = read(tmp_path)[0]
    assert found is not None
    assert found.exception is not None
    assert (found.exception.message, found.exception.notes) == ("boom", ("a note",))
    assert "could not be made" not in capfd.readouterr().err
