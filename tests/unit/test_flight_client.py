"""Asking ranks for the records of their collectives: bounded whatever their servers do."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ftslurm.monitor import flight_client, flight_dump, flight_server
from ftslurm.monitor.flight_client import FlightCollector
from ftslurm.records.codec import BadFile
from ftslurm.records.flight import GroupConfig

DOCUMENT = (Path(__file__).parent / "flight_documents" / "mismatch-1.json").read_bytes()
Serve = Callable[..., str]


def reply(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A server in a rank's directory; it gives its answers one after the other, and keeps the connection open."""
    listening: list[socket.socket] = []
    asked: dict[str, list[bytes]] = {}

    def run(server: socket.socket, name: str, answers: tuple[bytes, ...]) -> None:
        kept = []
        for answer in answers:
            try:
                connection, _ = server.accept()
                asked[name].append(connection.recv(4096))
                connection.sendall(answer)
            except OSError:
                return
            kept.append(connection)

    def serve(name: str, *answers: bytes) -> str:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(directory / flight_server.SOCKET))
        server.listen(1)
        listening.append(server)
        asked[name] = []
        threading.Thread(target=run, args=(server, name, answers), daemon=True).start()
        return str(directory)

    serve.asked = asked  # type: ignore[attr-defined]
    yield serve
    for server in listening:
        server.close()


def collect(directories: dict[int, str], timeout_s: float = 5.0) -> tuple[FlightCollector, float]:
    """Collect to the end; return the collector, and after how many seconds no rank was asked any more."""
    collector, began_s = FlightCollector(directories, timeout_s), time.monotonic()
    collector.start()
    while not collector.fetched:
        time.sleep(0.001)
    fetched_s = time.monotonic() - began_s
    while not collector.done:
        time.sleep(0.001)
    return collector, fetched_s


def test_all_ranks_are_asked_by_the_name_that_newer_torch_has_and_one_without_it_by_the_older(serve: Serve) -> None:
    ranks = {0: serve("a", reply(DOCUMENT)), 1: serve("b", reply(b"?", "404 Not Found"), reply(DOCUMENT))}
    answers = collect(ranks)[0].answers()
    assert [len(one.trace.entries) for one in answers.values() if one.trace is not None] == [4, 4]
    names = [line.split()[1] for line in serve.asked["b"]]  # type: ignore[attr-defined]
    assert names == [b"/handler/fr_trace_json", b"/handler/dump_nccl_trace_json"]


def test_ranks_that_do_not_answer_cost_no_more_than_the_time_out_and_the_others_nothing(serve: Serve) -> None:
    silent = {rank: serve(f"silent{rank}") for rank in range(8)}
    collector, fetched_s = collect({**silent, 9: serve("good", reply(DOCUMENT))}, 0.3)
    answers = collector.answers()
    assert 0.25 < fetched_s < 1.5
    assert answers[9].trace is not None
    assert {answers[rank].trouble for rank in silent} == {"no answer within 300 ms"}


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (reply(b"not a recorder's document"), "its recorder's document: torn or not JSON"),
        (reply(b"its mutex is broken", "500 Internal Server Error"), "its server answers 500: its mutex is broken"),
        (reply(b"no such handler", "404 Not Found"), "its server answers 404: no such handler"),
        (reply(DOCUMENT, length=10**9)[: -len(DOCUMENT)] + b"x" * 100, "no answer within"),
        (b"\0\xff" * 500, "no answer within"),
    ],
)
def test_what_else_a_server_answers_is_named(serve: Serve, answer: bytes, trouble: str) -> None:
    answers = collect({0: serve("a", answer, answer)}, 0.3)[0].answers()
    assert answers[0].trace is None
    assert (answers[0].trouble or "").startswith(trouble)


def test_an_answer_without_end_is_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_client, "LIMIT", 100_000)
    answers = collect({0: serve("a", reply(b"x" * 400_000))})[0].answers()
    assert "larger than" in (answers[0].trouble or "")


def test_a_rank_without_a_server_costs_no_thread_and_says_why(tmp_path: Path) -> None:
    (tmp_path / flight_server.ABOUT).write_text("2.1.0\nthis torch has no control-plane server\n")
    (tmp_path / "none").mkdir()
    threads = threading.active_count()
    collector = FlightCollector({0: str(tmp_path), 1: str(tmp_path / "none")})
    collector.start()
    assert collector.fetched and collector.done and threading.active_count() == threads
    answers = collector.answers()
    assert (answers[0].torch, answers[0].trouble) == ("2.1.0", "this torch has no control-plane server")
    assert answers[1].trouble == flight_client.NO_SERVER


def test_a_dead_ranks_socket_is_no_answer(serve: Serve, tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / flight_server.SOCKET))
    server.close()
    assert collect({0: str(tmp_path)})[0].answers()[0].trouble == flight_client.NO_SERVER


# What is left behind


def test_what_a_rank_has_left_is_found_before_what_torch_has(tmp_path: Path) -> None:
    assert flight_dump.find(str(tmp_path), 3) is None
    (tmp_path / f"{flight_server.TORCH_DUMP}3").write_bytes(pickle.dumps({"entries": []}, protocol=2))
    found = flight_dump.find(str(tmp_path), 3)
    assert found is not None and found.by_torch and flight_dump.aborted_by_torch(str(tmp_path), 3)
    assert flight_dump.read(found, "it").entries == ()
    (tmp_path / flight_server.DUMP).write_bytes(DOCUMENT)
    found = flight_dump.find(str(tmp_path), 3)
    assert found is not None and not found.by_torch
    assert len(flight_dump.read(found, "it").entries) == 4


def test_torchs_own_file_is_read_and_a_pickle_that_calls_anything_is_not(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(BadFile, match=r"rank 3: no plain pickle .*asks for posix\.mkdir"):
        flight_dump.loads(pickle.dumps({"entries": [Evil()]}), "rank 3")
    assert not (tmp_path / "made").exists()
    for damaged in (b"", b"\x80\x02}(", b"junk"):
        with pytest.raises(BadFile):
            flight_dump.loads(damaged, "rank 3")


def test_a_file_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / flight_server.DUMP)
    assert flight_dump.find(str(tmp_path), 0) is None


# The rank's side


class Torch:
    """A stand-in for ``torch._C._distributed_c10d``."""

    def __init__(self, newer: bool = True) -> None:
        self.started: list[str] = []
        if newer:
            self._dump_fr_trace_json = lambda: b""

    def _WorkerServer(self, path: str, port: int) -> object:
        assert port == -1
        os.write(2, b"[W1] Server listening to UNIX /x\n[W2] something else\n")
        self.started.append(path)
        return object()


def served(
    monkeypatch: pytest.MonkeyPatch, path: str, module: object | None, **environment: str
) -> tuple[dict[str, str | None], tuple[str | None, str | None]]:
    """Serve with that module; return the variables of torch, and what the rank has written down."""
    names = (*flight_server.SIZES, *flight_server.DUMP_PLACES, flight_server.DUMP_WANTED)
    monkeypatch.setattr(os, "environ", dict(environment))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)
    flight_server.serve(path)
    return {name: os.environ.get(name) for name in names}, flight_client.about(os.path.dirname(path))


def test_the_recorder_is_sized_by_the_name_that_torch_reads_unless_the_user_has_done_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path, new, old = str(tmp_path / "s"), *flight_server.SIZES
    size = flight_server.ENTRIES
    for newer, given, expected in (
        (True, {}, (size, None)),
        (False, {}, (None, size)),
        (True, {new: "7"}, ("7", None)),
        (True, {old: "7"}, (None, "7")),
        (True, {new: "0"}, ("0", None)),
    ):
        torch = Torch(newer)
        variables, (_, problem) = served(monkeypatch, path, torch, **given)
        assert (variables[new], variables[old]) == expected
        assert torch.started == [path] and problem is None
    assert "listening" not in (shown := capfd.readouterr().err) and "something else" in shown


def test_torchs_own_files_stay_where_a_user_wants_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, (place, older) = str(tmp_path / "s"), flight_server.DUMP_PLACES
    assert served(monkeypatch, path, Torch())[0][place] == str(tmp_path / flight_server.TORCH_DUMP)
    for name in (place, older, flight_server.DUMP_WANTED):
        variables, _ = served(monkeypatch, path, Torch(), **{name: "/own/x"})
        assert [value for value in variables.values() if value and str(tmp_path) in value] == []


def test_what_a_rank_leaves_has_the_members_of_its_groups_which_gloo_s_recorder_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a group of others, torch lists the ranks, but has no name.
    members = {1: {0: 0, 1: 1, 2: 2}, 2: {0: 0, 2: 1}, -100: {0: 0, 1: 1}}
    world = SimpleNamespace(pg_names={1: "0", 2: "3"}, pg_group_ranks=members)
    torch = Torch()
    torch._dump_fr_trace_json = lambda: DOCUMENT
    monkeypatch.setenv(flight_server.VARIABLE, "x")
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", torch)
    for module, expected in ((SimpleNamespace(_world=world), (0, 2)), (object(), ())):
        monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)
        flight_server.leave(str(tmp_path))
        found = flight_dump.find(str(tmp_path), 0)
        assert found is not None
        trace = flight_dump.read(found, "it")
        assert len(trace.entries) == 4
        assert trace.pg_config.get("3", GroupConfig()).ranks == expected


def test_where_torch_has_no_server_or_the_path_is_too_long_the_rank_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    for place, module, expected in (
        (tmp_path, None, "built without torch.distributed"),
        (tmp_path, object(), "no control-plane server"),
        (long, Torch(), "its socket is too long"),
    ):
        variables, (_, problem) = served(monkeypatch, str(place / "s"), module)
        assert expected in (problem or "")
        assert set(variables.values()) == {None}
