"""Checks by all tasks of a Slurm step: they join in the shared directory, and the first node gathers the results.

Every access to that directory is in a child process: it may hang on one node, which the others then report.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence

from ftslurm import __version__
from ftslurm.dataclasses import dataclass
from ftslurm.doctor import barrier
from ftslurm.doctor.barrier import Session
from ftslurm.doctor.node import CALL_LIMIT_S, SLACK_S
from ftslurm.doctor.timed_filesystem import TimedFileSystem, run_all
from ftslurm.health.check import Peer
from ftslurm.health.checks.network_reach import neighbours
from ftslurm.health.cluster_view import of_json, to_json
from ftslurm.health.verdict import Json, Verdict

PEERS = 16
"""Number of following nodes whose addresses each node reads; more would be many small files."""


@dataclass(frozen=True)
class Joined:
    """Result of joining, on this node.

    Attributes:
        nodes: those that take part, in Slurm's order; empty: joining failed.
        peers: addresses of the nodes after this one.
        problem: why joining failed, one line.
    """

    nodes: tuple[str, ...]
    peers: tuple[Peer, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Gathered:
    """The published results, and for nodes without one the reason."""

    verdicts: Mapping[str, tuple[Verdict, ...]]
    stuck: Mapping[str, tuple[int, ...]]
    lost: Mapping[str, str]


def join_nodes(session: Session, directory: str, address: str, port: int, wait_s: float) -> Joined:
    """Publish this node's address, wait at most `wait_s` seconds for the others, and read their addresses."""

    def work(fs: TimedFileSystem) -> Json:
        # Never created: in a directory that exists on one node alone, that node would be alone.
        if not fs.during(f"stat {directory}", lambda: os.path.isdir(directory)):
            raise FileNotFoundError(errno.ENOENT, "there is no such directory here", directory)
        barrier.enter(fs, session.root)
        addresses = session.path("address")
        barrier.make(fs, addresses)
        barrier.tell(fs, os.path.join(addresses, f"{session.node}.json"), address=address, port=port)
        nodes = barrier.arrive(fs, session, __version__, wait_s)
        next_ones = neighbours([Peer(node, node) for node in nodes], session.node, PEERS)
        found = {peer.node: barrier.look(fs, os.path.join(addresses, f"{peer.node}.json")) for peer in next_ones}
        peers = [[node, word["address"], word["port"]] for node, word in found.items() if word is not None]
        return {"nodes": nodes, "peers": peers}

    (met,) = run_all([work], wait_s + barrier.TURN_S * 10 + CALL_LIMIT_S + SLACK_S, CALL_LIMIT_S)
    if met.value is None:
        return Joined((), problem=met.problem)
    peers = tuple(Peer(str(node), str(address), int(port)) for node, address, port in met.value["peers"])
    return Joined(tuple(met.value["nodes"]), peers)


def publish_result(session: Session, verdicts: Sequence[Verdict], stuck: Sequence[int]) -> str | None:
    """Publish this node's result for the first node; return the error if that fails."""
    result: Json = {"node": session.node, "verdicts": [to_json(one) for one in verdicts], "stuck": list(stuck)}
    (done,) = run_all([lambda fs: barrier.publish_result(fs, session, result)], CALL_LIMIT_S + SLACK_S, CALL_LIMIT_S)
    return done.problem


def gather(session: Session, nodes: Sequence[str], directory: str, met_s: float, wait_s: float) -> Gathered:
    """Collect the results of the other nodes.

    Args:
        session: the session; this node's own result is not awaited.
        nodes: those that joined.
        directory: the shared directory, for messages.
        met_s: time-out of joining, for messages.
        wait_s: time-out for results, seconds.
    """
    others = [node for node in nodes if node != session.node]

    def work(fs: TimedFileSystem) -> Json:
        return barrier.collect(fs, session, others, wait_s)

    results: Json = {}
    problem = None
    if others:
        (got,) = run_all([work], wait_s + CALL_LIMIT_S + SLACK_S, CALL_LIMIT_S)
        results, problem = got.value or {}, got.problem
    verdicts: dict[str, tuple[Verdict, ...]] = {}
    stuck: dict[str, tuple[int, ...]] = {}
    lost = dict.fromkeys(absent(session, nodes), f"did not join in {directory} within {met_s:g} s")
    for node in others:
        try:
            verdicts[node] = tuple(of_json(one) for one in results[node]["verdicts"])
            stuck[node] = tuple(int(pid) for pid in results[node]["stuck"])
        except (KeyError, TypeError, ValueError) as error:
            why = f"sent an invalid result ({error})" if node in results else "sent no result"
            lost[node] = f"joined, but {why}" + (f": {problem}" if problem else f" within {wait_s:g} s")
            verdicts.pop(node, None)
    return Gathered(verdicts, stuck, lost)


def absent(session: Session, nodes: Sequence[str]) -> list[str]:
    """Return the expected nodes that did not join."""
    return [node for node in session.expected if node not in nodes]
