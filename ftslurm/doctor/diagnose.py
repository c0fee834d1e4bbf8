"""From all nodes' facts to a diagnosis: all judges in one place (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from ftslurm.dataclasses import dataclass, replace
from ftslurm.doctor.checks import atomic_rename, clock, directory, exclusive_link, lock, name_lookup, rate, visibility
from ftslurm.health.barrier import LISTING_S
from ftslurm.health.cluster_view import MEET, ClusterView
from ftslurm.health.multi_node import Gathered
from ftslurm.health.verdict import Json, NodeFinding, Verdict, node_finding, worst
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import names

T = TypeVar("T")
CHECKS = (
    name_lookup.CHECK,
    clock.CHECK,
    exclusive_link.CHECK,
    atomic_rename.CHECK,
    lock.CHECK,
    visibility.CHECK,
    rate.CHECK,
)
"""The contended checks in the order in which they run; `directory` comes first, before the nodes join."""

Results = Mapping[str, Mapping[str, Json]]


@dataclass(frozen=True)
class Diagnosis:
    """Facts and findings about the directory.

    Attributes:
        expected: all nodes that were started, in order.
        results: node to the facts of its checks, of the nodes that published them.
        findings: worst first.
        offsets: node to its clock's offset, from the server's or (`server_clock` False) the first node's.
        delays: reading node to its delay.
    """

    directory: str
    expected: tuple[str, ...]
    results: Results
    findings: tuple[NodeFinding, ...]
    offsets: Mapping[str, clock.Offset]
    server_clock: bool
    delays: Mapping[str, visibility.Delays]

    @property
    def status(self) -> str:
        """FAIL: a run would fail here, or might lose its state."""
        return worst(one.finding.status for one in self.findings)


def diagnose(path: str, expected: Sequence[str], present: Sequence[str], gathered: Gathered) -> Diagnosis:
    """Judge everything.

    Args:
        path: the directory under test.
        expected: all nodes that were started, in order.
        present: those that joined; empty if this node could not even try.
        gathered: the published results.
    """
    results: Results = {
        node: {one.check: one.facts for one in verdicts if one.facts is not None}
        for node, verdicts in gathered.verdicts.items()
    }
    lost = gathered.lost if present else {}
    views = of_check(results, directory.NAME)
    machines = {node: view["machine"] for node, view in views.items()}
    linked = of_check(results, exclusive_link.CHECK.name)
    races = {node: [exclusive_link.Race(**race) for race in facts["races"]] for node, facts in linked.items()}
    all_here = set(present) <= set(results)
    complete = all_here and all(linked.get(node, {}).get("complete") for node in results)
    offsets, server, delays = _times(results)
    found = [
        *judge_lost(lost, path, present),
        *judge_versions(gathered.versions),
        *judge_listing((*present, *expected)[0], gathered.unlisted),
        *directory.judge(views, alone=len(expected) == 1),
        *name_lookup.judge(of_check(results, name_lookup.CHECK.name), machines),
        *exclusive_link.judge(races, complete),
        *atomic_rename.judge(_typed(atomic_rename.Reads, results, atomic_rename.CHECK.name)),
        *lock.judge(_typed(lock.Lock, results, lock.CHECK.name)),
        *visibility.judge([each for each in delays.values() if {each.writer, each.reader} <= set(results)]),
        *rate.judge(_typed(rate.Rate, results, rate.CHECK.name)),
        *clock.judge(offsets, server),
    ]
    verdicts = gathered.verdicts if all_here else {n: _consequences(found) for n, found in gathered.verdicts.items()}
    findings = tuple(ClusterView(tuple(expected), verdicts, outliers=tuple(found)).findings)
    return Diagnosis(path, tuple(expected), results, findings, offsets, server, delays)


def of_check(results: Results, check: str) -> dict[str, Json]:
    """Return one check's facts by node."""
    return {node: result[check] for node, result in results.items() if check in result}


def _typed(kind: type[T], results: Results, check: str) -> dict[str, T]:
    return {node: kind(**facts) for node, facts in of_check(results, check).items()}


def _consequences(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts of a node whose neighbour is silent: that is the likely reason for checks that failed."""
    return [
        replace(
            one,
            findings=tuple(
                replace(finding, status=WARN) if finding.text.startswith("could not be checked") else finding
                for finding in one.findings
            ),
        )
        for one in verdicts
    ]


def _times(results: Results) -> tuple[dict[str, clock.Offset], bool, dict[str, visibility.Delays]]:
    measured = of_check(results, visibility.CHECK.name)
    exchanges = {n: visibility.Exchanges(**facts["exchanges"]) for n, facts in measured.items() if facts["exchanges"]}
    stats = {n: visibility.StatTimes(**facts["stats"]) for n, facts in measured.items() if facts["stats"]}
    pairs = {}
    for node, own in exchanges.items():
        pair = clock.from_exchanges([*own.new, *own.renamed])
        if pair is not None:
            pairs[node, own.peer] = pair
    between = {pair: offset for pair, offset in pairs.items() if pair[0] != pair[1]}
    offsets, server = clock.offsets(_typed(clock.Stamps, results, clock.CHECK.name), between)
    delays = {
        own.peer: visibility.delays(node, own, stats.get(own.peer), pairs.get((node, own.peer)))
        for node, own in exchanges.items()
    }
    return offsets, server, delays


def judge_lost(lost: Mapping[str, str], path: str, present: Sequence[str]) -> list[NodeFinding]:
    """Findings for the nodes that never joined, and for those that joined and sent no result."""
    found = []
    for node, why in lost.items():
        advice = f"the filesystem hangs there or the node died; try `srun -w {node} ls {path}`"
        if node not in present:
            advice = (
                "either the task did not start there, or the directory is another one there (not mounted?): compare "
                f"`srun -w {node} stat -f {path}` with `srun -w {present[0] if present else 'NODE'} stat -f …`"
            )
        found.append(node_finding(FAIL, MEET, (node,), why, advice))
    return found


def judge_versions(by_node: Mapping[str, str]) -> list[NodeFinding]:
    """Different versions of ftslurm on the nodes of one job are incompatible."""
    if len(set(by_node.values())) < 2:
        return []
    kinds = {version: [n for n, v in by_node.items() if v == version] for version in sorted(set(by_node.values()))}
    text = "; ".join(f"ftslurm {version} on {names(nodes, 3)}" for version, nodes in kinds.items())
    return [node_finding(FAIL, MEET, (), text, "install the same version on all nodes")]


def judge_listing(first: str, nodes: Sequence[str]) -> list[NodeFinding]:
    """A stale listing hides files from every program that searches a directory."""
    if not nodes:
        return []
    text = (
        f"a listing lacked {names(nodes, 5)}'s file for more than {LISTING_S:g} s, although it could be opened by name"
    )
    advice = "open other nodes' files by name, not from a listing; NFS: try lookupcache=none or a newer kernel"
    return [node_finding(WARN, "listing", (first,), text, advice)]
