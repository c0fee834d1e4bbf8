"""Reaching addresses and ports with real sockets."""

from __future__ import annotations

import errno
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from ftslurm.health.check import Context, Peer
from ftslurm.health.checks import network_reach
from ftslurm.health.tcp_probe import CONNECTED, ERROR, NO_ROUTE, REFUSED, SILENT, UNRESOLVED, Probe, is_own, probe_all


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port that answers nothing: its queue of connections is full, and the kernel drops what comes."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        held = []
        for _ in range(4):
            held.append(socket.socket())
            held[-1].setblocking(False)
            held[-1].connect_ex(("127.0.0.1", port))
        yield port
        for one in held:
            one.close()


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return port_of(server)


def test_a_port_that_listens_and_one_that_does_not_are_reached(listener: socket.socket) -> None:
    found = probe_all([("127.0.0.1", port_of(listener)), ("127.0.0.1", free_port())], 2.0)
    assert [one.outcome for one in found] == [CONNECTED, REFUSED]
    assert all(one.there for one in found)
    assert found[1].text == "connection refused"


def test_a_black_hole_is_given_up_in_time_and_holds_up_no_other(listener: socket.socket, black_hole: int) -> None:
    began = time.monotonic()
    targets = [("127.0.0.1", black_hole), ("127.0.0.1", port_of(listener)), ("127.0.0.1", black_hole)]
    found = probe_all(targets, 0.3)
    assert [one.outcome for one in found] == [SILENT, CONNECTED, SILENT]
    assert found[0].text == "no answer within 0.3 s" and not found[0].there
    assert 0.29 <= time.monotonic() - began < 1.5


def test_what_answers_late_is_reached() -> None:
    """The kernel sends the first packet again: one lost is no fault."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        held = [socket.create_connection(server.getsockname())]
        accepting = threading.Timer(0.2, lambda: held.append(server.accept()[0]))
        accepting.start()
        (found,) = probe_all([("127.0.0.1", port_of(server))], 5.0)
        accepting.join()
        for one in held:
            one.close()
    assert found.outcome == CONNECTED


def test_an_attempt_can_be_waited_for_among_other_things(listener: socket.socket) -> None:
    attempt = Probe("127.0.0.1", port_of(listener), source="127.0.0.1")
    if attempt.fileno() >= 0:
        assert select.select([], [attempt.fileno()], [], 2.0)[1]
    found = attempt.result()
    assert found is not None and found.outcome == CONNECTED
    assert attempt.fileno() == -1 and attempt.result() == found
    peer = listener.accept()[0]
    attempt.close()
    assert peer.recv(1) == b""
    peer.close()


def test_names_are_not_resolved_and_a_wrong_port_is_no_crash() -> None:
    found = probe_all([("localhost", 80), ("127.0.0.1", 70000)], 0.5)
    assert [one.outcome for one in found] == [UNRESOLVED, ERROR]
    assert found[0].text == "'localhost' is no address"


def test_a_source_that_is_not_ours_is_not_insisted_on(listener: socket.socket) -> None:
    for source in ("203.0.113.1", "::1", "n1"):
        (found,) = probe_all([("127.0.0.1", port_of(listener))], 2.0, source)
        assert found.outcome == CONNECTED


def test_an_address_is_own_or_not() -> None:
    assert is_own("127.0.0.1") and is_own("127.0.1.1")
    assert not is_own("203.0.113.1") and not is_own("localhost")


def test_nothing_stays_open(listener: socket.socket, black_hole: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    probe_all([("127.0.0.1", port_of(listener)), ("127.0.0.1", black_hole), ("127.0.0.1", free_port())], 0.1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_route_the_answer_comes_at_once() -> None:
    unshare = shutil.which("unshare")
    code = (
        "from ftslurm.health.tcp_probe import probe_all\n"
        "print(*probe_all([('10.1.2.3', 80), ('127.0.0.1', 80)], 5.0), sep='\\n')"
    )
    if unshare is None or subprocess.run([unshare, "-rn", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network of one's own here")
    began = time.monotonic()
    done = subprocess.run([unshare, "-rn", sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert time.monotonic() - began < 4.0
    text = os.strerror(errno.ENETUNREACH).lower()
    assert done.stdout.splitlines()[0] == f"ProbeResult(outcome='{NO_ROUTE}', text='{text}')"


def test_peers_are_reached_by_address_and_by_name(listener: socket.socket, black_hole: int) -> None:
    peers = (
        Peer("n2", "127.0.0.1", port_of(listener)),
        Peer("n3", "localhost", port_of(listener)),
        Peer("n4", "127.0.0.1", black_hole),
        Peer("n5", "no-such-node.invalid", 1),
        Peer("n6", "127.0.0.1", 0),
    )
    context = Context("n1", address="127.0.0.1", peers=peers)
    began = time.monotonic()
    facts = network_reach.fetch(context)
    assert time.monotonic() - began < network_reach.CHECK.limit_s
    assert [(peer["node"], peer["there"], peer["outcome"]) for peer in facts["peers"]] == [
        ("n2", True, CONNECTED),
        ("n3", True, CONNECTED),
        ("n4", False, SILENT),
        ("n5", False, UNRESOLVED),
    ]
    judgement = network_reach.judge(facts, None, context)
    assert judgement.summary == "2 of 4 other nodes reached"
    assert [finding.subject for finding in judgement.findings] == ["n4", "n5"]
