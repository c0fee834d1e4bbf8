"""torch's contract of a rendezvous backend, held by `SharedFSBackend`; with torch, without torchrun."""

from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousParameters,
    RendezvousStateError,
    rendezvous_handler_registry,
)

from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.torchrun.dynamic import SharedFSBackend
from ftslurm.torchrun.options import WrongOption

WRONG = ["1", b"1", "", b"", 1.0, (), [1], True, False, 0, -1, 2, 10**12, object()]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def backend(directory: Path) -> SharedFSBackend:
    return open_backend(directory)


def open_backend(directory: Path) -> SharedFSBackend:
    return SharedFSBackend(FencedCell(PosixFileSystem(owner=os.geteuid()), str(directory)))


def newest(directory: Path) -> Path:
    return max(directory.glob("0*.json"))


# The contract (RendezvousBackend in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py)


def test_its_name_is_the_backends(backend: SharedFSBackend) -> None:
    assert backend.name == "sharedfs"


def test_there_is_no_state_at_first(backend: SharedFSBackend) -> None:
    assert backend.get_state() is None


def test_the_first_state_needs_no_token(backend: SharedFSBackend) -> None:
    result = backend.set_state(b"x")
    assert result is not None
    state, token, won = result
    assert (state, won) == (b"x", True)
    assert backend.get_state() == (b"x", token)


def test_the_token_of_the_newest_state_lets_one_set_the_next(backend: SharedFSBackend, directory: Path) -> None:
    token = None
    for value in (b"x", b"y", b"y", b"", b"\0\n{"):
        result = backend.set_state(value, token)
        assert result is not None
        state, newer, won = result
        assert (state, won) == (value, True)
        assert newer != token, "the same bytes again are a new state"
        assert open_backend(directory).get_state() == (value, newer)
        token = newer


def test_a_stale_token_sets_nothing_and_returns_the_existing_state(backend: SharedFSBackend) -> None:
    _, old, _ = backend.set_state(b"x")
    _, new, _ = backend.set_state(b"y", old)
    assert backend.set_state(b"z", old) == (b"y", new, False)
    assert backend.get_state() == (b"y", new)


def test_no_token_sets_nothing_where_a_state_exists(backend: SharedFSBackend, directory: Path) -> None:
    _, token, _ = backend.set_state(b"x")
    for one in (backend, open_backend(directory)):
        assert one.set_state(b"z") == (b"x", token, False)
        assert one.set_state(b"z", None) == (b"x", token, False)
    assert backend.get_state() == (b"x", token)


@pytest.mark.parametrize("wrong", WRONG, ids=[f"{type(one).__name__}-{i}" for i, one in enumerate(WRONG)])
def test_a_token_of_the_wrong_type_or_from_nowhere_sets_nothing(
    backend: SharedFSBackend, directory: Path, wrong: object
) -> None:
    assert backend.set_state(b"z", wrong) is None
    assert backend.get_state() is None
    _, token, _ = backend.set_state(b"x")
    for one in (backend, open_backend(directory)):
        assert one.set_state(b"z", wrong) == (b"x", token, False)
        assert one.get_state() == (b"x", token)


def test_another_nodes_token_is_as_good_as_ones_own(backend: SharedFSBackend, directory: Path) -> None:
    _, token, _ = backend.set_state(b"x")
    assert open_backend(directory).set_state(b"y", token) == (b"y", token + 1, True)


def test_of_many_that_count_together_no_step_is_lost(directory: Path) -> None:
    open_backend(directory).set_state(b"0")

    def count() -> None:
        mine = open_backend(directory)
        for _ in range(20):
            state, token = mine.get_state() or (b"", None)
            while True:
                state, token, won = mine.set_state(b"%d" % (int(state) + 1), token) or (b"", None, False)
                if won:
                    break

    threads = [threading.Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert open_backend(directory).get_state() == (b"120", 121)


# Damage and intruders


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"schema":"ftslurm/cell","version":1,"token":7,"nonce":"a"}\nx', b"x\ny"]
)
def test_a_corrupt_state_is_called_corrupt(backend: SharedFSBackend, directory: Path, damage: bytes) -> None:
    backend.set_state(b"x")
    newest(directory).write_bytes(damage)
    for ask in (backend.get_state, open_backend(directory).get_state, lambda: backend.set_state(b"y")):
        with pytest.raises(RendezvousStateError, match=newest(directory).name):
            ask()


def test_a_directory_that_cannot_be_read_is_a_lost_connection(backend: SharedFSBackend, directory: Path) -> None:
    _, token, _ = backend.set_state(b"x")
    directory.rename(directory.with_name("elsewhere"))
    for ask in (backend.get_state, lambda: backend.set_state(b"y", token), lambda: backend.set_state(b"y", "wrong")):
        with pytest.raises(RendezvousConnectionError, match="shared directory"):
            ask()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_another_users_file_is_never_read_as_state(backend: SharedFSBackend, directory: Path) -> None:
    backend.set_state(b"x")
    os.chown(newest(directory), 65534, 65534)
    with pytest.raises(RendezvousStateError, match="belongs to uid 65534"):
        open_backend(directory).get_state()


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_only_plain_files_are_read(backend: SharedFSBackend, directory: Path, kind: str) -> None:
    backend.set_state(b"x")
    file = newest(directory)
    aside = file.rename(directory.parent / "aside")
    if kind == "link":
        file.symlink_to(aside)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    with pytest.raises(RendezvousError):
        open_backend(directory).get_state()


# Driving torch's own handler


def create(shared: Path, **conf: str) -> RendezvousHandler:
    conf = {"protocol": "dynamic", "last_call_timeout": "1", "join_timeout": "20", **conf}
    params = RendezvousParameters("sharedfs", str(shared), "job", 2, 2, local_addr="127.0.0.1", **conf)
    return rendezvous_handler_registry.create_handler(params)


def test_torch_finds_the_backend_by_its_entry_point(tmp_path: Path) -> None:
    handler = create(tmp_path, protocol="fold")
    assert type(handler).__name__ == "SharedFSHandler"
    assert (handler.get_backend(), handler.get_run_id()) == ("sharedfs", "job")
    assert handler.use_agent_store
    assert not handler.is_closed()
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown()


def test_quotes_that_a_shell_left_around_the_options_are_dropped(tmp_path: Path) -> None:
    assert create(tmp_path, protocol="fold", **{"'read_timeout": "5'"}).shutdown()
    handler = create(tmp_path / "dynamic", **{"'join_timeout": "7'"})
    assert handler.settings.timeout.join.total_seconds() == 7


def test_closing_the_rendezvous_reaches_all_nodes(tmp_path: Path) -> None:
    first, second = create(tmp_path, protocol="fold"), create(tmp_path, protocol="fold")
    first.set_closed()
    assert first.is_closed()
    assert second.is_closed()


def test_torchs_dynamic_handler_meets_on_it(tmp_path: Path) -> None:
    handlers = [create(tmp_path), create(tmp_path)]
    worlds: list[tuple[int, int]] = []

    def join(handler: RendezvousHandler) -> None:
        info = handler.next_rendezvous()
        worlds.append((info.rank, info.world_size))

    threads = [threading.Thread(target=join, args=(handler,)) for handler in handlers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(worlds) == [(0, 2), (1, 2)]
    assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0]
    assert handlers[0].shutdown()
    # torch's handler looks at most once a second.
    end = time.monotonic() + 10
    while not handlers[1].is_closed():
        assert time.monotonic() < end
        time.sleep(0.1)
    assert handlers[1].shutdown()


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def test_bytes_that_our_fence_did_not_publish_are_never_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "unpickled"
    handler = create(tmp_path)
    state = next(tmp_path.glob("job/dynamic/*/state"))
    (state / "000000000001.json").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(RendezvousStateError):
        handler.next_rendezvous()
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists(), "the bomb works"


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    create(tmp_path)
    state = next(tmp_path.glob("job/dynamic/*/state"))
    state.chmod(0o777)
    with pytest.raises(WrongOption, match="others may write to it"):
        create(tmp_path)
