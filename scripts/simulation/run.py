"""`scripts/simulate`: simulates many clusters, one after the other, and prints a summary."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from ftslurm.dataclasses import dataclass, field
from simulation.cluster import Cluster, ClusterOptions
from simulation.faults import WEIGHTS
from simulation.invariants import Broken
from simulation.scenario import Scenario


@dataclass
class Tally:
    """Totals over many clusters.

    Attributes:
        faults: number of faults, by kind.
        stale: stale answers of the filesystem's clients, by kind; in addition to the faults.
        virtual_s: virtual seconds.
        saved: commits of checkpoints, by outcome.
        had_to_succeed: runs that were required to succeed after the faults, besides each cluster's last attempt.
    """

    clusters: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    stale: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    agents: int = 0
    rounds: int = 0
    generations: int = 0
    had_to_succeed: int = 0
    saved: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0

    def add(self, scenario: Scenario, cluster: Cluster) -> None:
        """Add a finished cluster."""
        self.clusters += 1
        self.faults += cluster.counts
        self.stale += cluster.stale
        self.attempts += len(cluster.attempts)
        self.agents += len(cluster.agents)
        self.rounds += cluster.ledger.rounds
        self.generations += cluster.ledger.token
        self.had_to_succeed += scenario.had_to_succeed is not None
        self.saved += cluster.saved
        self.virtual_s += cluster.now()


class Failed(AssertionError):
    """A cluster broke an invariant; the text has the seed and the last events."""


def simulate(options: ClusterOptions) -> tuple[Scenario, Cluster]:
    """Run one cluster to its end.

    Raises:
        Failed: an invariant does not hold, or the code under test raised an unexpected exception.
    """
    cluster = Cluster(options)
    scenario = Scenario(cluster)
    try:
        scenario.run()
    except (Exception, Broken) as error:
        history = "\n".join(f"  {when:10.3f} s  {text}" for when, text in cluster.events)
        what = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
        raise Failed(f"seed {options.seed}: {what}\nat {cluster.now():.3f} s; before it:\n{history}") from error
    return scenario, cluster


def simulate_many(clusters: Sequence[ClusterOptions]) -> Tally:
    """Run clusters one after the other; see `simulate`."""
    tally = Tally()
    for options in clusters:
        tally.add(*simulate(options))
    return tally


def describe(tally: Tally, wall_s: float, cpu_s: float) -> str:
    """Return the totals as text; the processor time is the cost on a machine that is not shared."""
    lines = [
        f"{tally.faults.total():,} faults over {tally.clusters:,} clusters in {wall_s:.1f} s"
        f" ({cpu_s:.1f} s of one processor): no invariant broken",
        f"  {tally.attempts:,} attempts, {tally.agents:,} agents, {tally.rounds:,} rounds,"
        f" {tally.generations:,} generations of the state, {tally.virtual_s / 86400:.1f} days of virtual time",
        f"  {tally.clusters + tally.had_to_succeed:,} runs were required to succeed, and did",
    ]
    lines += [f"  {count:9,}  {kind}" for kind, count in sorted(tally.saved.items())]
    lines += [f"  {count:9,}  {kind}" for kind, count in sorted(tally.faults.items())]
    lines += [f"  {count:9,}  {kind} (not counted above)" for kind, count in sorted(tally.stale.items())]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code: 0, or 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__, allow_abbrev=False)
    parser.add_argument("--clusters", type=int, default=1000, metavar="N")
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="of the first cluster; incremented for the others"
    )
    parser.add_argument("--faults-per-cluster", type=int, default=100, metavar="F")
    parser.add_argument("--nodes", type=_span, default=(2, 6), metavar="N[-M]")
    parser.add_argument("--kinds", default="", metavar="A,B", help="only these kinds of faults: " + ", ".join(WEIGHTS))
    parser.add_argument("--replay", type=int, metavar="SEED", help="only this cluster, and print all its events")
    options = parser.parse_args(arguments)
    kinds = tuple(kind for kind in options.kinds.split(",") if kind)
    if unknown := [kind for kind in kinds if kind not in WEIGHTS]:
        parser.error(f"--kinds: {unknown[0]!r} is none of: {', '.join(WEIGHTS)}")
    seeds = range(options.seed, options.seed + options.clusters)
    if options.replay is not None:
        seeds = range(options.replay, options.replay + 1)
    common = (options.nodes, options.faults_per_cluster, kinds, options.replay is not None)
    return _run([ClusterOptions(seed, *common) for seed in seeds])


def _run(clusters: list[ClusterOptions]) -> int:
    print(f"seeds {clusters[0].seed} to {clusters[-1].seed}", flush=True)
    started = time.monotonic()
    tally = Tally()
    try:
        for options in clusters:
            tally.add(*simulate(options))
            if tally.clusters % 100 == 0:
                seconds = time.monotonic() - started
                print(f"{tally.clusters} clusters, {tally.faults.total():,} faults, {seconds:.0f} s", flush=True)
    except Failed as failed:
        print(f"{failed}", file=sys.stderr)
        failed_one = clusters[tally.clusters]
        low, high = failed_one.nodes
        again = f"--replay {failed_one.seed} --faults-per-cluster {failed_one.faults} --nodes {low}-{high}"
        print(f"again: scripts/simulate {again}", file=sys.stderr)
        return 1
    print(describe(tally, time.monotonic() - started, time.process_time()))
    return 0


def _span(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    span = int(low), int(high or low)
    if not 1 <= span[0] <= span[1]:
        raise ValueError(text)
    return span


__all__ = ["Failed", "Tally", "describe", "main", "simulate", "simulate_many"]
