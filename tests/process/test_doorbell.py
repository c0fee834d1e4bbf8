"""The doorbell on real sockets: a process that knows the agent can ring it, and nothing ever waits for it."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import replace

import pytest

from ftslurm.agent.doorbell import AT_ONCE, GREETING, MOST, WINDOW_S, Doorbell
from ftslurm.records.node import NodeRecord, first_record


def record_of(bell: Doorbell, address: str = "127.0.0.1", incarnation: str = "secret") -> NodeRecord:
    record = first_record("n1", incarnation, "1.0", 0, 1)
    return replace(record, address=address, doorbell_port=bell.port)


def rung(bell: Doorbell, seconds: float = 5.0) -> bool:
    return bool(select.select([bell], [], [], seconds)[0]) and bell.answer()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_an_agent_is_woken_by_a_reader_of_its_node_record(address: str) -> None:
    try:
        socket.getaddrinfo(address, 1)[0]
        bell = Doorbell(address, "secret")
    except OSError:
        pytest.skip(f"no {address} here")
    if not bell.port:
        pytest.skip(f"cannot listen on {address} here")
    Doorbell("127.0.0.1", "other").ring([record_of(bell, address)])
    assert rung(bell)


def test_a_datagram_without_the_incarnation_wakes_no_agent() -> None:
    bell = Doorbell("127.0.0.1", "secret")
    Doorbell("127.0.0.1", "other").ring([record_of(bell, incarnation="guessed")])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for junk in (b"", GREETING, GREETING + b"secret" * 100, b"\xff" * 1000):
            stranger.sendto(junk, ("127.0.0.1", bell.port))
    # On loopback they are there when sendto returns: that there was something to take is part of the test.
    assert select.select([bell], [], [], 5.0)[0] and not bell.answer()
    assert not select.select([bell], [], [], 0.0)[0], "all were taken"


def test_a_flood_is_taken_in_bounded_bites() -> None:
    bell = Doorbell("127.0.0.1", "secret")
    caller, record = Doorbell("127.0.0.1", "other"), record_of(bell)
    for _ in range(5000):
        caller.ring([record])
    assert bell.answer(), "among those that the kernel has kept"


def test_a_flooded_doorbell_is_ignored_for_a_second_and_then_read_again() -> None:
    seconds = [100.0]
    bell = Doorbell("127.0.0.1", "secret", lambda: seconds[0])
    turns = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for _ in range(20):
            for _ in range(AT_ONCE):
                stranger.sendto(b"junk", ("127.0.0.1", bell.port))
            if select.select([bell], [], [], 0.0)[0]:
                turns += 1
                assert not bell.answer()
        assert turns == MOST // AT_ONCE and bell.deadline == 100.0 + WINDOW_S
        assert not bell.answer(), "nor is a queue taken that is there"
        seconds[0] += WINDOW_S
        while bell.answer() or select.select([bell], [], [], 0.0)[0]:
            seconds[0] += WINDOW_S
        Doorbell("127.0.0.1", "other").ring([record_of(bell)])
        assert rung(bell)


def test_a_name_that_cannot_be_resolved_and_a_dead_agent_cost_the_caller_nothing() -> None:
    gone = Doorbell("127.0.0.1", "gone")
    record = record_of(gone)
    gone._socket.close()  # type: ignore[union-attr]
    caller = Doorbell("127.0.0.1", "other")
    began = time.monotonic()
    for _ in range(100):
        caller.ring([record, replace(record, address="no-such-host.invalid"), replace(record, address="\udcff")])
    assert time.monotonic() - began < 5.0


def test_a_node_without_the_address_goes_without_a_bell() -> None:
    assert Doorbell("203.0.113.7", "secret").port == 0
    bell = Doorbell("203.0.113.7", "secret")
    assert bell.fileno() == -1
    assert not bell.answer()
