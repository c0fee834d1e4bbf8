"""The fenced cell: one winner per token, whatever replies get lost and wherever a writer dies."""

from __future__ import annotations

import errno
import json
import random
import threading
from pathlib import Path

import pytest
from simulation.filesystem import CachingClient, ClientCache

from ftslurm.records.codec import BadFile, NewerFormat
from ftslurm.sharedfs.cell import KEPT, FencedCell, Generation, Versioned, read_generation
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.testing.memoryfs import AFTER, BEFORE, Crash, MemoryFileSystem, Operation

STATE = "/run/state"


def server() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.makedirs(STATE)
    return fs


def filled(count: int) -> MemoryFileSystem:
    fs = server()
    cell = FencedCell(fs, STATE)
    for token in range(count):
        assert cell.set(b"v%d" % (token + 1), token or None)[1]
    return fs


def put(fs: MemoryFileSystem, name: str, data: bytes) -> None:
    fs.create(f"{STATE}/{name}", data, durable=False)


def lose(name: str, error: OSError | None = None, when: str = AFTER):
    """Return a hook that fails the first operation `name`, done or not."""
    left = [True]

    def hook(moment: str, operation: Operation) -> None:
        if left[0] and moment == when and operation.name == name:
            left[0] = False
            raise error or OSError(errno.EIO, "the reply was lost")

    return hook


def test_an_empty_cell_holds_nothing() -> None:
    assert FencedCell(server(), STATE).get() is None
    assert FencedCell(server(), STATE).get_newer(0) is None


def test_the_first_value_has_token_1_and_tokens_grow_by_1() -> None:
    cell = FencedCell(server(), STATE)
    assert cell.set(b"a", None) == (Versioned(b"a", 1), True)
    assert cell.set(b"b", 1) == (Versioned(b"b", 2), True)
    assert cell.get() == Versioned(b"b", 2)


def test_a_value_may_be_empty_and_may_hold_newlines() -> None:
    cell = FencedCell(server(), STATE)
    cell.set(b"", None)
    assert cell.get() == Versioned(b"", 1)
    cell.set(b"\n{}\n\n", 1)
    assert cell.get() == Versioned(b"\n{}\n\n", 2)


def test_a_writer_with_an_old_token_changes_nothing_and_learns_the_newest_value() -> None:
    fs = filled(3)
    before = fs.files()
    assert FencedCell(fs.client(), STATE).set(b"late", 1) == (Versioned(b"v3", 3), False)
    assert FencedCell(fs.client(), STATE).set(b"late", None) == (Versioned(b"v3", 3), False)
    assert fs.files() == before


def test_a_reader_asks_for_newer_values_only() -> None:
    fs = filled(3)
    cell = FencedCell(fs.client(), STATE)
    assert cell.get_newer(2) == Versioned(b"v3", 3)
    assert cell.get_newer(3) is None


@pytest.mark.parametrize("hint", [None, b"", b"1\n", b"3\n", b"99\n", b"nonsense", b"\xff\xfe", b"9" * 60, b"1" * 1000])
def test_the_newest_value_is_found_with_any_hint(hint: bytes | None) -> None:
    fs = filled(4)
    fs.unlink(f"{STATE}/current")
    if hint is not None:
        put(fs, "current", hint)
    assert FencedCell(fs.client(), STATE).get() == Versioned(b"v4", 4)
    knowing = FencedCell(fs.client(), STATE)
    assert knowing.get_newer(2) == Versioned(b"v4", 4)
    assert knowing.get_newer(4) is None


def test_names_that_are_no_generations_are_passed_over() -> None:
    fs = filled(2)
    for name in ("lock", "notes.txt", "12.json", "²²²²²²²²²²²².json", ".000000000009.json.ab.tmp"):
        put(fs, name, b"x")
    fs.unlink(f"{STATE}/current")
    assert FencedCell(fs.client(), STATE).get() == Versioned(b"v2", 2)


@pytest.mark.parametrize("data", [b"", b"{}", b"{}\nvalue", b"\x00\xff\nvalue", b'{"schema":"ftslurm/cell"'])
def test_a_damaged_generation_is_named_and_never_written_over(data: bytes) -> None:
    fs = filled(2)
    put(fs, "000000000003.json", data)
    for attempt in (lambda c: c.get(), lambda c: c.set(b"mine", 2)):
        with pytest.raises(BadFile, match=r"000000000003\.json"):
            attempt(FencedCell(fs.client(), STATE))
    assert fs.files()[f"{STATE}/000000000003.json"] == data


def test_a_generation_under_the_wrong_name_is_not_used() -> None:
    fs = filled(2)
    fs.link(f"{STATE}/000000000002.json", f"{STATE}/000000000003.json")
    with pytest.raises(BadFile, match="names token 2, expected 3"):
        FencedCell(fs, STATE).get()


def test_a_generation_of_a_newer_format_is_reported_as_such() -> None:
    fs = server()
    put(fs, "000000000001.json", b'{"schema":"ftslurm/cell","version":2,"token":1,"author":"a"}')
    with pytest.raises(NewerFormat, match="newer ftslurm"):
        FencedCell(fs, STATE).get()


@pytest.mark.parametrize("error", [errno.EIO, errno.ETIMEDOUT, errno.EEXIST, errno.ESTALE])
def test_a_link_whose_reply_was_lost_is_won_all_the_same(error: int) -> None:
    fs = filled(1)
    cell = FencedCell(fs.client(lose("link", OSError(error, "lost"))), STATE)
    assert cell.set(b"mine", 1) == (Versioned(b"mine", 2), True)
    assert FencedCell(fs, STATE).get() == Versioned(b"mine", 2)


def test_a_link_that_was_refused_once_is_tried_again() -> None:
    fs = filled(1)
    cell = FencedCell(fs.client(lose("link", when=BEFORE)), STATE)
    assert cell.set(b"mine", 1) == (Versioned(b"mine", 2), True)


def test_a_link_that_is_refused_raises_changes_nothing_and_can_be_tried_again() -> None:
    fs = filled(1)
    before = fs.files()
    refused = [0]

    def refuse(moment: str, operation: Operation) -> None:
        if moment == BEFORE and operation.name == "link" and refused[0] < 2:
            refused[0] += 1
            raise OSError(errno.EIO, "refused")

    cell = FencedCell(fs.client(refuse), STATE)
    with pytest.raises(OSError, match="refused"):
        cell.set(b"mine", 1)
    assert fs.files() == before
    assert cell.get() == Versioned(b"v1", 1)
    assert cell.set(b"mine", 1) == (Versioned(b"mine", 2), True)


@pytest.mark.parametrize("error", [errno.EIO, errno.EEXIST])
def test_a_client_that_remembers_the_name_as_absent_learns_that_it_won(error: int) -> None:
    fs = filled(1)
    name = f"{STATE}/000000000002.json"
    links = [0]

    def forgetful(moment: str, operation: Operation) -> None:
        if moment == BEFORE and operation.name == "read" and operation.path == name and links[0] < 2:
            raise FileNotFoundError(errno.ENOENT, "remembered as absent", name)
        if operation.name == "link":
            links[0] += moment == BEFORE
            if moment == AFTER:
                raise OSError(error, "the reply was lost")

    assert FencedCell(fs.client(forgetful), STATE).set(b"mine", 1) == (Versioned(b"mine", 2), True)


@pytest.mark.parametrize("name", ["rename", "unlink"])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_failure_after_the_link_does_not_hide_that_it_was_won(name: str, when: str) -> None:
    fs = filled(1)
    cell = FencedCell(fs.client(lose(name, when=when)), STATE)
    assert cell.set(b"mine", 1)[1]
    assert FencedCell(fs, STATE).get() == Versioned(b"mine", 2)


def test_a_full_disk_raises_and_leaves_nothing_behind() -> None:
    fs = filled(1)
    before = fs.files()
    full = fs.client(lose("create", OSError(errno.ENOSPC, "No space left on device"), "during"))
    with pytest.raises(OSError, match="No space left"):
        FencedCell(full, STATE).set(b"mine", 1)
    assert fs.files() == before


@pytest.mark.parametrize("error", [errno.EEXIST, errno.EIO])
def test_a_temporary_whose_reply_was_lost_is_made_again_or_forgotten(error: int) -> None:
    fs = filled(1)
    before = fs.files()
    cell = FencedCell(fs.client(lose("create", OSError(error, "lost"))), STATE)
    if error == errno.EEXIST:
        assert cell.set(b"mine", 1) == (Versioned(b"mine", 2), True)
        assert len(fs.files()) == len(before) + 1
    else:
        with pytest.raises(OSError, match="lost"):
            cell.set(b"mine", 1)
        assert fs.files() == before


def test_a_writer_leaves_only_generations_and_the_hint() -> None:
    fs = filled(3)
    names = [path.rpartition("/")[2] for path in fs.files()]
    assert names == ["000000000001.json", "000000000002.json", "000000000003.json", "current"]


def calls_of_a_set() -> int:
    seen = []
    fs = filled(2)
    FencedCell(fs.client(lambda when, operation: seen.append(when)), STATE).set(b"new", 2)
    return len(seen)


@pytest.mark.parametrize("last", range(calls_of_a_set()))
def test_when_a_writer_dies_between_any_two_calls_readers_see_old_or_new_and_the_next_goes_on(last: int) -> None:
    fs = filled(2)
    left = [last]

    def hook(when: str, operation: Operation) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash

    with pytest.raises(Crash):
        FencedCell(fs.client(hook), STATE).set(b"new", 2)
    for reader in (FencedCell(fs.client(), STATE), FencedCell(fs.client(), STATE)):
        found = reader.get()
        assert found in (Versioned(b"v2", 2), Versioned(b"new", 3))
    assert found is not None
    assert FencedCell(fs.client(), STATE).set(b"next", found.token) == (Versioned(b"next", found.token + 1), True)
    assert FencedCell(fs.client(), STATE).get() == Versioned(b"next", found.token + 1)


def test_whatever_fails_each_token_has_one_winner_and_no_won_value_is_lost() -> None:
    """Random contenders over a server that refuses operations and loses replies."""
    for seed in range(60):
        rng = random.Random(seed)
        fs = server()

        def hook(when: str, operation: Operation, rng: random.Random = rng) -> None:
            if rng.random() < 0.08:
                raise OSError(rng.choice([errno.EIO, errno.ESTALE, errno.ETIMEDOUT]), when)

        cells = [FencedCell(fs.client(hook), STATE, lambda rng=rng: f"{rng.getrandbits(64):016x}") for _ in range(3)]
        seen: list[int | None] = [None, None, None]
        winners: dict[int, bytes] = {}
        for step in range(60):
            writer = rng.randrange(3)
            value = b"%d by %d" % (step, writer)
            try:
                if rng.random() < 0.4:
                    found = cells[writer].get()
                    seen[writer] = found.token if found else None
                else:
                    newest, won = cells[writer].set(value, seen[writer])
                    seen[writer] = newest.token
                    if won:
                        assert newest.token not in winners, f"seed {seed}: two winners of {newest.token}"
                        assert newest.value == value, f"seed {seed}"
                        winners[newest.token] = value
            except OSError:
                continue
        final = FencedCell(fs.client(), STATE)
        for token, value in winners.items():
            assert final._read(token)[1] == value, f"seed {seed}: the winner of {token} was replaced"
        newest_ = final.get()
        assert (newest_.token if newest_ else 0) >= max(winners, default=0), f"seed {seed}"


def test_threads_contending_on_a_real_filesystem_have_one_winner_for_each_of_200_generations(tmp_path: Path) -> None:
    won: list[list[int]] = [[] for _ in range(4)]

    def contend(writer: int) -> None:
        cell = FencedCell(PosixFileSystem(), str(tmp_path))
        token = 0
        while token < 200:
            newest, mine = cell.set(b"%d" % writer, token or None)
            token = newest.token
            if mine:
                won[writer].append(token)

    threads = [threading.Thread(target=contend, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = sorted(token for tokens in won for token in tokens)
    assert winners == list(range(1, len(winners) + 1))
    reader = FencedCell(PosixFileSystem(), str(tmp_path))
    for writer, tokens in enumerate(won):
        assert all(reader._read(token)[1] == b"%d" % writer for token in tokens)
    assert not [name for name in tmp_path.iterdir() if name.name.endswith(".tmp")]


def test_a_quick_read_finds_the_hinted_generation_although_the_client_caches_its_absence() -> None:
    fs = filled(1)
    cache = ClientCache(lambda: 0.0, random.Random(0), lambda kind: None)
    follower = FencedCell(CachingClient(fs, cache), STATE)
    assert follower.get_newer(1, thorough=True) is None, "its client now remembers that there is no second generation"
    assert FencedCell(fs, STATE).set(b"v2", 1)[1]
    with pytest.raises(FileNotFoundError):
        follower._read(2)
    assert follower.get_newer(1, thorough=False) == Versioned(b"v2", 2)


def seen_by_all(fs: MemoryFileSystem) -> FencedCell:
    """Return a writer that knows the newest generation."""
    cell = FencedCell(fs, STATE)
    cell.get()
    return cell


def test_an_old_generation_loses_its_value_but_its_name_stays_the_fence() -> None:
    fs = filled(KEPT + 2)
    cell = seen_by_all(fs)
    cell.retire(1)
    cell.retire(3)
    assert b"v1" not in fs.content(f"{STATE}/000000000001.json")
    assert b"v3" in fs.content(f"{STATE}/000000000003.json"), "one of the newest keeps its value"
    newest, won = FencedCell(fs, STATE).set(b"late", None)
    assert (newest.token, won) == (KEPT + 2, False), "a writer that slept since the beginning"


def test_a_reader_that_finds_only_retired_generations_gets_an_error_to_retry() -> None:
    fs = filled(KEPT + 1)
    seen_by_all(fs).retire(1)
    for name in fs.listdir(STATE):
        if name != "000000000001.json":
            fs.unlink(f"{STATE}/{name}")
    with pytest.raises(OSError, match="not visible yet"):
        FencedCell(fs, STATE).get()


def test_a_retired_generation_still_has_its_authors_nonce() -> None:
    fs = filled(KEPT + 1)
    name = f"{STATE}/000000000001.json"
    before = read_generation(fs.content(name), name, 1)
    seen_by_all(fs).retire(1)
    assert read_generation(fs.content(name), name, 1) == Generation(before.nonce, None)
    assert json.loads(fs.content(name))["retired"] is True


def test_a_formatted_copy_of_a_generation_is_read_as_the_original() -> None:
    fs = server()
    FencedCell(fs, STATE).set(b'{"a":1}\n', None)
    name = f"{STATE}/000000000001.json"
    formatted = json.dumps(json.loads(fs.content(name)), indent=4).encode()
    assert json.loads(read_generation(formatted, name, 1).value or b"") == {"a": 1}
