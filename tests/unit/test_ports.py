"""A port is kept from others until rank 0 listens on it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ftslurm.agent.doorbell import Doorbell
from ftslurm.agent.ports import HIGHEST, LOWEST, TRIES, ReservedPort, lowest_ephemeral, pick_at_random


@pytest.fixture
def taken():
    """A port with a listener."""
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        yield other.getsockname()[1]


def test_no_other_process_gets_a_reserved_port_before_it_is_released() -> None:
    port = ReservedPort(pick_at_random, 32_768)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port_number = port.number
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port_number))
    port.release()
    # As torch's store does it: at once, on all addresses.
    with socket.socket(socket.AF_INET6) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("::", port_number))
        store.listen()


def test_a_port_is_taken_from_below_the_kernels_range() -> None:
    ranges = []

    def pick(first: int, last: int) -> int:
        ranges.append((first, last))
        return pick_at_random(first, last)

    for lowest, expected in [(32_768, (LOWEST, HIGHEST)), (20_000, (LOWEST, 19_999)), (15_500, (1024, 15_499))]:
        port = ReservedPort(pick, lowest)
        assert ranges.pop() == expected
        assert expected[0] <= port.number <= expected[1]
        port.release()


def test_without_room_below_the_kernel_chooses() -> None:
    def pick(first: int, last: int) -> int:
        raise AssertionError("there is nothing to pick from")

    port = ReservedPort(pick, 1024)
    assert port.number >= 1024
    port.release()


def test_a_port_that_is_taken_is_passed_over(taken: int) -> None:
    free = ReservedPort(pick_at_random, 32_768)
    number = free.number
    free.release()
    numbers = iter([taken, taken, number])
    port = ReservedPort(lambda first, last: next(numbers), 32_768)
    assert port.number == number
    port.release()


def test_when_all_tries_find_taken_ports_the_kernel_chooses(taken: int) -> None:
    tries = []
    port = ReservedPort(lambda first, last: tries.append(1) or taken, 32_768)
    assert len(tries) == TRIES - 1
    assert port.number != taken
    port.release()


def test_two_reserved_ports_are_different() -> None:
    ports = [ReservedPort(pick_at_random, 32_768) for _ in range(20)]
    assert len({port.number for port in ports}) == 20
    for port in ports:
        port.release()


def test_numbers_are_picked_from_the_whole_range_both_ends_included() -> None:
    assert {pick_at_random(7, 9) for _ in range(200)} == {7, 8, 9}


@pytest.mark.parametrize(
    ("text", "expected"), [("32768\t60999\n", 32_768), ("1024 65535", 1024), ("", 32_768), ("x", 32_768)]
)
def test_the_kernels_range_is_read_or_linuxs_default_taken(tmp_path: Path, text: str, expected: int) -> None:
    (tmp_path / "range").write_text(text)
    assert lowest_ephemeral(str(tmp_path / "range")) == expected
    assert lowest_ephemeral(str(tmp_path / "missing")) == 32_768


def test_ports_of_the_users_range_are_used_one_after_the_other_and_then_refused() -> None:
    low = free_pair()
    pick = pick_at_random
    ports = [ReservedPort(pick, 32_768, (low, low + 1)) for _ in range(2)]
    assert {port.number for port in ports} == {low, low + 1}
    with pytest.raises(OSError, match=f"no port of {low}-{low + 1} is free"):
        ReservedPort(pick, 32_768, (low, low + 1))
    ports[0].release()
    again = ReservedPort(pick, 32_768, (low, low + 1))
    assert again.number == ports[0].number
    for port in (ports[1], again):
        port.release()


def test_a_port_of_the_users_range_with_connections_of_the_last_round_is_free() -> None:
    low = free_pair()
    with socket.socket() as master, socket.socket() as rank:
        master.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        master.bind(("", low))
        master.listen()
        rank.connect(("127.0.0.1", low))
        accepted, _ = master.accept()
        accepted.close()  # The side that closes first keeps the port in TIME_WAIT.
    port = ReservedPort(pick_at_random, 32_768, (low, low))
    assert port.number == low
    port.release()


def test_a_doorbell_has_a_port_of_the_users_range_or_none() -> None:
    low = free_pair()
    bells = [Doorbell("127.0.0.1", "x", ports=(low, low + 1)) for _ in range(3)]
    assert sorted(bell.port for bell in bells) == [0, low, low + 1]


def free_pair() -> int:
    """Return a port that is free with its successor."""
    while True:
        first = pick_at_random(21_000, 30_000)
        try:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                for number in (first, first + 1):
                    with socket.socket(socket.AF_INET, kind) as one:
                        one.bind(("", number))
        except OSError:
            continue
        return first
