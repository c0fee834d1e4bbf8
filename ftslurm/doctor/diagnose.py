"""From all nodes' facts to a diagnosis: all judges in one place (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.doctor import barrier
from ftslurm.doctor.findings import WARNING, WRONG, Finding, Json, facts, merge
from ftslurm.doctor.probes import atomic_rename, clock, exclusive_link, lock, mount, rate, resolve, visibility


@dataclass(frozen=True)
class Diagnosis:
    """Facts and findings about the directory.

    Attributes:
        expected: all nodes that were started, in order.
        results: node to its facts, of those that published them.
        findings: worst first.
        offsets: node to its clock's offset, from the server's or (`server_clock` False) the first node's.
        delays: waiting node to its delay.
    """

    directory: str
    expected: tuple[str, ...]
    results: Mapping[str, Json]
    findings: tuple[Finding, ...]
    offsets: Mapping[str, clock.Offset]
    server_clock: bool
    delays: Mapping[str, visibility.Delays]

    @property
    def wrong(self) -> bool:
        """Whether a run would fail here, or might lose its state."""
        return any(finding.severity == WRONG for finding in self.findings)


def diagnose(
    directory: str,
    expected: Sequence[str],
    present: Sequence[str],
    results: Mapping[str, Json],
    versions: Mapping[str, str],
    wait_s: float,
) -> Diagnosis:
    """Judge everything.

    Args:
        directory: the directory under test.
        expected: all nodes that were started, in order.
        present: those that joined; empty if this node could not even try.
        results: node to its published facts.
        versions: node to its ftslurm version.
        wait_s: time-out of joining.
    """
    places = facts(mount.MountView, results, "place")
    races = {
        node: [exclusive_link.Race(**race) for race in r["names"]["races"]]
        for node, r in results.items()
        if r.get("names")
    }
    complete = set(present) == set(results) and all(r.get("names", {}).get("complete") for r in results.values())
    offsets, server, delays = _times(results)
    found = [
        *(barrier.judge(expected, present, list(results), directory, wait_s) if present else ()),
        *barrier.judge_versions(dict(versions)),
        *(finding for node, r in results.items() for finding in barrier.judge_listing(node, r.get("unlisted", ()))),
        *_problems(results, silent=not set(present) <= set(results)),
        *mount.judge(places, alone=len(expected) == 1),
        *resolve.judge(facts(resolve.Names, results, "resolve"), {n: p.machine for n, p in places.items()}),
        *exclusive_link.judge(races, complete),
        *atomic_rename.judge(facts(atomic_rename.Reads, results, "whole")),
        *lock.judge(facts(lock.Lock, results, "lock")),
        *visibility.judge([each for each in delays.values() if {each.maker, each.at} <= set(results)]),
        *rate.judge(facts(rate.Rate, results, "rate")),
        *rate.judge_slowest({node: (r["slowest"][0], r["slowest"][1]) for node, r in results.items()}),
        *clock.judge(offsets, server),
    ]
    return Diagnosis(directory, tuple(expected), results, tuple(merge(found, expected)), offsets, server, delays)


def _times(results: Mapping[str, Json]) -> tuple[dict[str, clock.Offset], bool, dict[str, visibility.Delays]]:
    asked = facts(visibility.Asked, results, "asked")
    looked = facts(visibility.Looked, results, "looked")
    pairs = {}
    for node, asking in asked.items():
        pair = clock.from_exchanges([*asking.new, *asking.renamed])
        if pair is not None:
            pairs[node, asking.peer] = pair
    between = {pair: offset for pair, offset in pairs.items() if pair[0] != pair[1]}
    offsets, server = clock.offsets(facts(clock.Stamps, results, "clock"), between)
    delays = {
        asking.peer: visibility.delays(node, asking, looked.get(asking.peer), pairs.get((node, asking.peer)))
        for node, asking in asked.items()
    }
    return offsets, server, delays


def _problems(results: Mapping[str, Json], silent: bool) -> list[Finding]:
    """Findings for failed probes; with a `silent` node, that is the most likely reason."""
    found = []
    for node, result in results.items():
        hung = [problem for problem in result["problems"] if problem["hung"]]
        if hung:
            more = f" (and {len(hung) - 1} more)" if len(hung) > 1 else ""
            text = f"the filesystem hangs: {hung[0]['text']}{more}"
            advice = "a run survives that only if it ends; check the server, and the kernel's log (dmesg) there"
            found.append(Finding(WRONG, hung[0]["probe"], (node,), text, advice))
        for problem in result["problems"]:
            if not problem["hung"]:
                severity = WARNING if silent or problem["text"].startswith("LeftAlone") else WRONG
                text = f"the probe {problem['probe']!r} failed: {problem['text'].removeprefix('LeftAlone: ')}"
                found.append(Finding(severity, problem["probe"], (node,), text, "see the other findings first"))
    return found
