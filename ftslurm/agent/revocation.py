"""Revocation of commits of past rounds before the ranks of a new one start, on a thread: their directories may hang.

Each node revokes those of its own ranks, and a share of those of lost nodes, so that a thousand nodes do not all rename
the same files. The revoked commits are deleted after that, while the ranks run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

from ftslurm.agent.actions import Assignment
from ftslurm.local_directory import remove_tree
from ftslurm.sharedfs.commits import Commits, Revoked

POLL_S = 0.05
OTHERS_S = 2.0
"""Seconds to wait for the other nodes; then this one revokes the rest. Several nodes may do that without harm."""


class Revocation:
    """Revokes commits.

    Args:
        commits: of the run.
        node: this one.
        monotonic: clock, seconds.
        sleep: waits, seconds.
    """

    def __init__(
        self, commits: Commits, node: str, monotonic: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._commits = commits
        self._node = node
        self._monotonic = monotonic
        self._sleep = sleep
        self._threads: list[threading.Thread] = []

    def start(self, assignment: Assignment, report: Callable[[str | None], None]) -> None:
        """Revoke all commits of rounds before this one.

        Args:
            report: is called, on the thread, with None when no such commit can be finished any more, or with a problem.
        """
        self._run(lambda: self.revoke(assignment), report)

    def clean_up(self, round_: int) -> None:
        """Revoke unfinished commits of this node's ranks of a round; all of them have ended.

        Raises:
            OSError: the registrations cannot be read.
        """
        if self._commits.left_by(self._node, round_):
            own = lambda node: node == self._node  # noqa: E731
            self._run(lambda: self._commits.revoke(round_ + 1, own)[0], lambda problem: None)

    def finish(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for the deletion of revoked commits; the next attempt deletes the rest."""
        end = self._monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - self._monotonic()))

    def revoke(self, assignment: Assignment) -> list[Revoked]:
        """Revoke all commits of rounds before this one; return those to be deleted.

        Raises:
            OSError: not all could be revoked.
        """
        end = self._monotonic() + OTHERS_S
        found: dict[str, Revoked] = {}
        while True:
            nodes = None if self._monotonic() >= end else assignment
            revoked, others = self._commits.revoke(assignment.round, partial(self._is_mine, nodes))
            found.update((one.registration, one) for one in revoked)
            if not others:
                return list(found.values())
            self._sleep(POLL_S)

    def _is_mine(self, assignment: Assignment | None, node: str) -> bool:
        """Return whether this node revokes the commits of `node`; None: the wait for others is over."""
        if assignment is None or node in assignment.nodes:
            return assignment is None or node == self._node
        return int.from_bytes(node.encode(), "big") % len(assignment.nodes) == assignment.group_rank

    def _run(self, work: Callable[[], list[Revoked]], report: Callable[[str | None], None]) -> None:
        def run() -> None:
            try:
                revoked = work()
            except Exception as error:
                report(f"cannot revoke the unfinished commits of past rounds: {error}")
                return
            report(None)
            for one in revoked:
                _delete(one.path)
                self._commits.finished(one.registration)

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=run, name="revocation", daemon=True))
        self._threads[-1].start()


def _delete(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        remove_tree(path)
        return
    try:
        os.unlink(path)
    except OSError:
        pass
