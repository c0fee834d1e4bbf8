"""`ftslurm health`: check this node, or in a Slurm step all nodes at once, and print one table."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftslurm.health.selection import HEALTHY, UNHEALTHY, USAGE, choose, context_of
from ftslurm.terminal import UsageError, print_error, show

if TYPE_CHECKING:
    import argparse

    from ftslurm.health.check import Check, CheckedPath
    from ftslurm.health.cluster_view import ClusterView
    from ftslurm.health.node_context import NodeContext

RESULTS_S = 10.0
"""Seconds beyond the slowest check's time-out for which the first node waits for the others' results."""

NOTES = """\
On all nodes of a job, one table:  srun --ntasks-per-node=1 ftslurm health
In an allocation that already runs a program, add --overlap to srun and --busy to health.

Exit codes: 0 healthy (including warnings and unknowns), 1 a check failed, or a node did not report,
2 wrong usage. As Slurm's HealthCheckProgram, Prolog or Epilog: see ftslurm health --slurm help.
"""


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code: 0 healthy, 1 unhealthy, 2 wrong usage."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    try:
        if options.slurm is not None:
            from ftslurm.health.slurm_program import main as slurm_program

            return slurm_program(options)
        if options.drain or options.act:
            raise UsageError("--drain and --act need --slurm: without it, the node is not changed")
        checks = choose(options)
        if options.list:
            from ftslurm.health.table import listing

            show(listing(checks))
            return HEALTHY
        return _check_nodes(options, checks)
    except UsageError as error:
        print_error(f"ftslurm health: {error}")
        return USAGE


def _check_nodes(options: argparse.Namespace, checks: Sequence[Check]) -> int:
    from ftslurm.health.node_context import INTERRUPTED, Interrupted, interruptible, node_context

    unique = f"local-{os.getpid()}-{os.urandom(3).hex()}"
    placement = node_context(os.environ, socket.gethostname(), unique, "ftslurm health")
    if placement is None:
        return HEALTHY
    try:
        with interruptible():
            if len(placement.expected) == 1:
                return _alone(options, checks, placement)
            return _together(options, checks, placement)
    except Interrupted:
        return INTERRUPTED


def _paths(options: argparse.Namespace, directory: str | None) -> list[CheckedPath]:
    """Return the paths that every job uses; the shared directory where there is one."""
    from ftslurm.health.check import CheckedPath

    # The check itself adds the user's $TMPDIR.
    own = [CheckedPath(path, path) for path in ("/tmp", "/dev/shm")]
    return [*([CheckedPath(directory, "shared directory")] if directory else []), *own]


def _alone(options: argparse.Namespace, checks: Sequence[Check], placement: NodeContext) -> int:
    from ftslurm.health.cluster_view import ClusterView
    from ftslurm.health.node_context import directory_of, is_dir_watched
    from ftslurm.health.run import run

    began = time.monotonic()
    default = directory_of(None, os.environ, os.getcwd(), lambda path: True)
    directory = options.shared_dir or (default if is_dir_watched(default) else None)
    context = context_of(options, placement.node, os.environ, _paths(options, directory), options.busy)
    result = run(checks, context, {})
    view = ClusterView(placement.expected, {placement.node: result.verdicts}, stuck={placement.node: result.stuck})
    return _print(options, view, time.monotonic() - began, placement.note)


def _together(options: argparse.Namespace, checks: Sequence[Check], placement: NodeContext) -> int:
    """Run the checks as one node of several: publish the result; the first node prints the table."""
    from ftslurm.dataclasses import replace
    from ftslurm.health.barrier import Session
    from ftslurm.health.cluster_view import ClusterView
    from ftslurm.health.multi_node import clean_up, gather, join_nodes, publish_result
    from ftslurm.health.node_context import Interrupted, directory_of, is_dir_watched
    from ftslurm.health.peers import compare
    from ftslurm.health.run import run

    began = time.monotonic()
    directory = directory_of(options.shared_dir, os.environ, os.getcwd(), is_dir_watched)
    session = Session(
        os.path.join(directory, f".ftslurm-health-{placement.session}"), placement.node, placement.expected
    )
    try:
        with _listening() as listener:
            joined = join_nodes(session, directory, options.wait, placement.node, listener.getsockname()[1])
            context = context_of(options, placement.node, os.environ, _paths(options, directory), options.busy)
            result = run(checks, replace(context, address=placement.node, peers=joined.peers), {})
            alone = len(joined.nodes) < 2 and placement.node != placement.expected[0]
            if alone or not joined.nodes:
                clean_up(session, others=not joined.nodes)
                own = ClusterView(
                    (placement.node,), {placement.node: result.verdicts}, stuck={placement.node: result.stuck}
                )
                why = joined.outcome.problem or f"no other node joined in {directory} within {options.wait:g} s"
                return _unmet(options, own, placement, why, time.monotonic() - began)
            if placement.node != joined.nodes[0]:
                problem = publish_result(session, result.verdicts, result.stuck)
                if problem:
                    print_error(f"ftslurm health: {placement.node}: its result could not be published: {problem}")
                return UNHEALTHY if problem else HEALTHY
            slowest_s = max((check.limit_s for check in checks), default=0.0)
            gathered = gather(session, joined.nodes, directory, options.wait, slowest_s + RESULTS_S)
    except Interrupted:
        clean_up(session)
        raise
    verdicts = {**gathered.verdicts, placement.node: result.verdicts}
    stuck = {**gathered.stuck, placement.node: result.stuck}
    in_order = {node: verdicts[node] for node in placement.expected if node in verdicts}
    stays = clean_up(session)
    view = ClusterView(placement.expected, in_order, gathered.lost, compare(in_order), stuck)
    return _print(options, view, time.monotonic() - began, stays or "")


def _listening() -> socket.socket:
    """Return a listening socket, for the reachability checks of the other nodes."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(("", 0))
    listener.listen(128)
    return listener


def _unmet(options: argparse.Namespace, own: ClusterView, placement: NodeContext, why: str, took_s: float) -> int:
    """Print this node's own result because the nodes could not meet: a table on the first node, a line on others."""
    from ftslurm.health.table import brief

    advice = "give a directory that all nodes share: --shared-dir DIR"
    if placement.node == placement.expected[0]:
        _print(options, own, took_s, f"only this node of {len(placement.expected)}: {why}; {advice}")
    else:
        found = brief(own.verdicts[placement.node]) or "no finding on the node itself"
        print_error(f"ftslurm health: {placement.node}: could not join the other nodes: {why}; {found}")
    return UNHEALTHY


def _print(options: argparse.Namespace, view: ClusterView, took_s: float, note: str) -> int:
    from ftslurm.health.table import render, to_document
    from ftslurm.records.health import FAIL

    show(to_document(view, took_s) if options.json else render(view, took_s))
    if note:
        print_error(f"ftslurm health: {note}")
    return UNHEALTHY if view.status == FAIL else HEALTHY


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser
    from ftslurm.health.node_context import seconds

    parser = CommandParser(
        prog="ftslurm health",
        description="Check whether this node is healthy: its GPUs, network, storage and host. Nothing is changed.",
        notes=NOTES,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="checks, or groups of them: gpu-ecc, gpu; default: all"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="all checks, as by default")
    which.add_argument("--quick", action="store_true", help="the checks run before a node joins a round: within 1 s")
    parser.add_argument("--skip", action="append", default=[], metavar="NAME,…", help="skip these checks or groups")
    parser.add_argument("--list", action="store_true", help="list the checks, without running them")
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    parser.add_argument(
        "--path", action="append", default=[], metavar="DIR", help="a path that jobs use; may be repeated"
    )
    parser.add_argument(
        "--command",
        action="append",
        default=[],
        metavar="CMD",
        help="your own check: exit code 0 ok, 1 warning, 2 unhealthy, and one line of output; may be repeated",
    )
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--busy", action="store_true", help="ranks are running: their resources are no leftovers")
    load.add_argument(
        "--idle", action="store_true", help="nothing should be running here (the default without --slurm)"
    )
    parser.add_argument(
        "--shared-dir",
        metavar="DIR",
        help="directory for joining nodes (default: $FTSLURM_SHARED_DIR, ./ftslurm-runs, or .)",
    )
    parser.add_argument("--wait", type=seconds, default=30.0, metavar="S", help="wait that long for all nodes (30)")
    parser.add_argument(
        "--slurm",
        choices=("health-check", "prolog", "epilog", "help"),
        help="run as Slurm's HealthCheckProgram, Prolog or Epilog; help: show how",
    )
    parser.add_argument("--drain", action="store_true", help="with --slurm: drain a node with a failed check")
    parser.add_argument("--act", action="store_true", help="with --slurm prolog|epilog: exit with 1 if a check failed")
    return parser
