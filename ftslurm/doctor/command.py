"""`ftslurm doctor [DIR]`: this node's context, the probes, one report from the first node."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftslurm.dataclasses import dataclass, replace
from ftslurm.terminal import UsageError, print_error, show

if TYPE_CHECKING:
    import argparse

    from ftslurm.doctor.contended import Meeting, Progress
    from ftslurm.doctor.diagnose import Diagnosis
    from ftslurm.health.barrier import Session
    from ftslurm.health.multi_node import Gathered
    from ftslurm.health.node_context import NodeContext

FINE, WRONG, USAGE = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code: 0 fine, 1 something is wrong, 2 wrong usage."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    from ftslurm.health.node_context import node_context

    unique = f"local-{os.getpid()}-{os.urandom(3).hex()}"
    try:
        if options.local_nodes:
            return _local_nodes(options, unique)
        placement = node_context(os.environ, socket.gethostname(), unique, "ftslurm doctor DIR")
    except UsageError as error:
        print_error(f"ftslurm doctor: {error}")
        return USAGE
    return FINE if placement is None else _on_node(options, placement)


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser
    from ftslurm.health.node_context import seconds

    parser = CommandParser(
        prog="ftslurm doctor",
        description="Prove that a directory can carry a run, on all nodes at once: srun --ntasks-per-node=1 ftslurm "
        "doctor DIR. Exit code 0: fine, 1: something is wrong, 2: wrong usage.",
    )
    parser.add_argument(
        "directory", nargs="?", metavar="DIR", help="default: the directory of the runs, ./ftslurm-runs or its parent"
    )
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    parser.add_argument("--seconds", type=seconds, default=10.0, metavar="N", help="measure for about that long (10)")
    parser.add_argument("--wait", type=seconds, default=30.0, metavar="N", help="wait that long for all nodes (30)")
    parser.add_argument("--local-nodes", type=_count, metavar="N", help="simulate N nodes on this machine")
    parser.add_argument("--nodes", type=_size, metavar="N", help="also print the load of a run of so many nodes ...")
    parser.add_argument("--nproc-per-node", type=_size, default=8, metavar="N", help="... with so many ranks each (8)")
    return parser


def _size(text: str) -> int:
    import argparse

    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 100_000):
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 100000, found {text!r}")
    return int(text)


def _count(text: str) -> int:
    import argparse

    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 64):
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 64, found {text!r}")
    return int(text)


def _local_nodes(options: argparse.Namespace, session: str) -> int:
    """Simulate N nodes, each in a process group of its own."""
    from ftslurm.health.node_context import INTERRUPTED, Interrupted, NodeContext, interruptible

    names = tuple(f"local{index}" for index in range(options.local_nodes))
    pids = []
    for name in names:
        pid = os.fork()
        if pid == 0:
            code = WRONG
            try:
                os.setpgid(0, 0)
                code = _on_node(options, NodeContext(name, names, session))
                sys.stdout.flush()
            finally:
                os._exit(code)
        pids.append(pid)
    try:
        with interruptible():
            return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256 for pid in pids)
    except Interrupted:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        for pid in pids:
            os.waitpid(pid, 0)
        return INTERRUPTED


@dataclass
class _Run:
    """The checks on this node: what they found, and the nodes that joined (none: joining failed, or was not tried)."""

    meeting: Meeting
    progress: Progress
    wait_s: float
    publish_problem: str | None = None

    @property
    def node(self) -> str:
        return self.meeting.session.node

    @property
    def expected(self) -> tuple[str, ...]:
        return self.meeting.session.expected

    @property
    def is_first(self) -> bool:
        """Whether this node prints the table: a node alone that is not the first would print one more."""
        nodes = self.meeting.nodes
        return self.node == self.expected[0] if len(nodes) < 2 else self.node == nodes[0]

    def own_result(self, expected: Sequence[str]) -> Gathered:
        """Return this node's result; the other nodes of `expected` have none."""
        from ftslurm import __version__
        from ftslurm.health.multi_node import Gathered

        why = f"did not join in {self.meeting.directory} within {self.wait_s:g} s"
        lost = {node: why for node in expected if node != self.node}
        return Gathered({self.node: tuple(self.progress.verdicts)}, {}, lost, {self.node: __version__}, ())


def _on_node(options: argparse.Namespace, placement: NodeContext) -> int:
    from ftslurm.health.barrier import Session
    from ftslurm.health.multi_node import clean_up
    from ftslurm.health.node_context import INTERRUPTED, Interrupted, directory_of, interruptible, is_dir_watched

    began = time.monotonic()
    directory = directory_of(options.directory, os.environ, os.getcwd(), is_dir_watched)
    session = Session(
        os.path.join(directory, f".ftslurm-doctor-{placement.session}"), placement.node, placement.expected
    )
    try:
        with interruptible():
            run = _run_checks(options, directory, session)
            diagnosis = _diagnose(run) if run.is_first else None
    except Interrupted:
        clean_up(session)
        return INTERRUPTED
    if diagnosis is None:
        return _report_problem(run)
    # A node that met no other created nothing, or cannot; a hanging filesystem is left alone.
    others = not run.meeting.nodes and len(placement.expected) > 1
    stays = None if run.progress.hangs else clean_up(session, others)
    return _print(options, placement, diagnosis, time.monotonic() - began, stays)


def _run_checks(options: argparse.Namespace, directory: str, session: Session) -> _Run:
    """Run all checks on this node, and publish the result for the first node."""
    from ftslurm.doctor.checks.directory import NAME, fetch, is_usable
    from ftslurm.doctor.contended import Meeting, Progress, run_checks
    from ftslurm.doctor.diagnose import CHECKS
    from ftslurm.health.cluster_view import MEET
    from ftslurm.health.multi_node import join_nodes, publish_result

    progress = Progress()
    run = _Run(Meeting(directory, session, (), options.seconds, not options.local_nodes), progress, options.wait)
    facts, outcome = fetch(directory, session)
    progress.add(NAME, [outcome], facts)
    # Nothing was created there, and to remove nothing would hang, too.
    progress.hangs += facts["took_s"] is None
    if not is_usable(facts) or outcome.problem:
        return run
    joined = join_nodes(session, directory, options.wait)
    progress.add(MEET, [joined.outcome], None)
    if joined.nodes:
        run.meeting = replace(run.meeting, nodes=joined.nodes)
        run_checks(run.meeting, CHECKS, progress)
        if not run.is_first:
            run.publish_problem = publish_result(session, progress.verdicts)
    return run


def _diagnose(run: _Run) -> Diagnosis:
    """Judge the results of all nodes."""
    from ftslurm.doctor.diagnose import diagnose
    from ftslurm.health.multi_node import CALL_LIMIT_S, SLACK_S, gather

    meeting = run.meeting
    if not meeting.nodes:
        return diagnose(meeting.directory, run.expected, (), run.own_result(run.expected))
    wait_s = 2 * CALL_LIMIT_S + SLACK_S
    gathered = gather(meeting.session, meeting.nodes, meeting.directory, run.wait_s, wait_s)
    verdicts = {run.node: tuple(run.progress.verdicts), **gathered.verdicts}
    in_order = {node: verdicts[node] for node in meeting.nodes if node in verdicts}
    return diagnose(meeting.directory, run.expected, meeting.nodes, replace(gathered, verdicts=in_order))


def _report_problem(run: _Run) -> int:
    """On all nodes but the first: print only what the first cannot know."""
    from ftslurm.doctor.diagnose import diagnose
    from ftslurm.health.multi_node import clean_up
    from ftslurm.health.verdict import describe
    from ftslurm.text import names

    met = len(run.meeting.nodes) > 1
    if met and run.publish_problem is None:
        return FINE
    # A node that joined and lost the others can report only its own findings.
    expected = (run.node,) if met else run.expected
    nodes = (run.node,) if met else run.meeting.nodes
    diagnosis = diagnose(run.meeting.directory, expected, nodes, run.own_result(expected))
    if not met and not run.progress.hangs:
        clean_up(run.meeting.session, others=not run.meeting.nodes)
    text = f"its result could not be published: {run.publish_problem}" if run.publish_problem else "no result"
    if diagnosis.findings:
        worst = diagnosis.findings[0]
        others = "" if worst.nodes in ((), (run.node,)) else f"{names(worst.nodes, 5)}: "
        text = f"{others}{describe(worst.finding)}; {worst.finding.advice}"
    print_error(f"ftslurm doctor: {run.node}: {text}")
    return WRONG


def _print(
    options: argparse.Namespace, placement: NodeContext, diagnosis: Diagnosis, took_s: float, stays: str | None
) -> int:
    from ftslurm.doctor.table import render, to_json
    from ftslurm.records.health import FAIL

    load = None
    if options.nodes:
        from ftslurm.doctor.load import load_of

        load = load_of(options.nodes, options.nproc_per_node)
    show(to_json(diagnosis, took_s, load) if options.json else render(diagnosis, took_s, load))
    for line in (placement.note, stays):
        if line:
            print_error(f"ftslurm doctor: {line}")
    return WRONG if diagnosis.status == FAIL else FINE
