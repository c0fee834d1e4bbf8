"""Joining of the tasks of a Slurm step in a shared directory, and gathering of their results by the first node.

Every access to that directory is in a child process: it may hang on one node, which the others then report.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftslurm import __version__
from ftslurm.dataclasses import dataclass
from ftslurm.health import barrier
from ftslurm.health.addresses import neighbours
from ftslurm.health.barrier import Session
from ftslurm.health.check import Peer
from ftslurm.health.timed_filesystem import Outcome, TimedFileSystem, run_all
from ftslurm.health.verdict import Json, Verdict, read_verdict, verdict_json
from ftslurm.sharedfs.ownership import check_own_directory

CALL_LIMIT_S = 10.0
"""A filesystem call that takes longer counts as hanging."""
SLACK_S = 5.0
PEERS = 16
"""Number of following nodes whose addresses each node reads; more would be many small files."""


@dataclass(frozen=True)
class Joined:
    """Result of joining, on this node.

    Attributes:
        nodes: those that take part, in Slurm's order; empty: joining failed.
        peers: addresses of the nodes after this one.
        outcome: of the process that joined.
    """

    nodes: tuple[str, ...]
    peers: tuple[Peer, ...]
    outcome: Outcome


@dataclass(frozen=True)
class Gathered:
    """The published results, and for nodes without one the reason.

    Attributes:
        versions: each node's ftslurm.
        unlisted: nodes whose files could be opened although the first node's listing lacked them.
    """

    verdicts: Mapping[str, tuple[Verdict, ...]]
    stuck: Mapping[str, tuple[int, ...]]
    lost: Mapping[str, str]
    versions: Mapping[str, str]
    unlisted: tuple[str, ...]


def join_nodes(session: Session, directory: str, wait_s: float, address: str | None = None, port: int = 0) -> Joined:
    """Wait at most `wait_s` seconds for the other nodes; publish an address, and read those of the next nodes."""

    def work(fs: TimedFileSystem) -> Json:
        # Never created: in a directory that exists on one node alone, that node would be alone.
        if not fs.during(f"stat {directory}", lambda: os.path.isdir(directory)):
            raise FileNotFoundError(errno.ENOENT, "there is no such directory here", directory)
        barrier.enter_session(fs, session.root)
        addresses = session.path("address")
        if address is not None:
            barrier.make_directory(fs, addresses)
            barrier.write_file(fs, os.path.join(addresses, f"{session.node}.json"), address=address, port=port)
        nodes = barrier.join(fs, session, wait_s)
        next_ones = neighbours([Peer(node, node) for node in nodes], session.node, PEERS if address is not None else 0)
        found = {peer.node: barrier.read_file(fs, os.path.join(addresses, f"{peer.node}.json")) for peer in next_ones}
        peers = [[node, file["address"], file["port"]] for node, file in found.items() if file is not None]
        return {"nodes": nodes, "peers": peers}

    (outcome,) = run_all([work], wait_s + barrier.TURN_S * 10 + CALL_LIMIT_S + SLACK_S, CALL_LIMIT_S)
    value = outcome.value or {"nodes": [], "peers": []}
    peers = tuple(Peer(str(node), str(address), int(port)) for node, address, port in value["peers"])
    return Joined(tuple(value["nodes"]), peers, outcome)


def publish_result(session: Session, verdicts: Sequence[Verdict], stuck: Sequence[int] = ()) -> str | None:
    """Publish this node's result for the first node; return the error if that fails."""
    result: Json = {"node": session.node, "verdicts": [verdict_json(one) for one in verdicts], "stuck": list(stuck)}
    result["ftslurm"] = __version__
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
        return {"results": barrier.collect(fs, session, others, wait_s), "unlisted": barrier.unlisted(fs, session)}

    (got,) = run_all([work], wait_s + CALL_LIMIT_S + SLACK_S, CALL_LIMIT_S) if others else (Outcome(),)
    results: Json = got.value["results"] if got.value else {}
    verdicts: dict[str, tuple[Verdict, ...]] = {}
    stuck: dict[str, tuple[int, ...]] = {}
    absent = [node for node in session.expected if node not in nodes]
    lost = dict.fromkeys(absent, f"did not join in {directory} within {met_s:g} s")
    for node in others:
        try:
            verdicts[node] = tuple(read_verdict(one) for one in results[node]["verdicts"])
            stuck[node] = tuple(int(pid) for pid in results[node]["stuck"])
        except (KeyError, TypeError, ValueError) as error:
            why = f"sent an invalid result ({error})" if node in results else "sent no result"
            lost[node] = f"joined, but {why}" + (f": {got.problem}" if got.problem else f" within {wait_s:g} s")
            verdicts.pop(node, None)
    versions = {session.node: __version__, **{node: str(result.get("ftslurm")) for node, result in results.items()}}
    return Gathered(verdicts, stuck, lost, versions, tuple(got.value["unlisted"]) if got.value else ())


def clean_up(session: Session, others: bool = False) -> str | None:
    """Remove the session's directory; return the error if it stays.

    Args:
        session: the session.
        others: other nodes may still be using it: remove this node's files, and then empty directories.
    """

    def work(fs: TimedFileSystem) -> bool:
        if not fs.during(f"stat {session.root}", lambda: os.path.lexists(session.root)):
            return True
        # Not if another user created it: links in it may point anywhere.
        fs.during(f"open {session.root}", lambda: check_own_directory(session.root))
        if others:
            fs.unlink(session.path("joined", f"{session.node}.json"))
            for name in (session.path("joined"), session.root):
                Path(name).rmdir()
            return True
        # NFS keeps an open file under a temporary name for a moment.
        for _ in range(5):
            fs.during(f"remove {session.root}", lambda: shutil.rmtree(session.root, ignore_errors=True))
            if not os.path.lexists(session.root):
                return True
            time.sleep(0.5)
        return False

    (done,) = run_all([work], 6 * CALL_LIMIT_S, 6 * CALL_LIMIT_S)
    if done.value or others:
        return None
    return f"{session.root} could not be removed ({done.problem or 'it is not empty'})"
