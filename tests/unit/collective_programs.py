"""Programs of collectives, run by a model of torch's process groups that stands still where the real ones would.

A rank makes its calls in order. A collective is done when all members of its group have made it with the same number,
and alike; a transfer when both sides have made theirs. The records are those of torch's flight recorder.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from ftslurm.records.flight import Collective, FlightRecord, GroupConfig, Trace

S = 10**9
OPERATIONS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "barrier")
UNEVEN = ("all_to_all", "gather", "scatter")


@dataclass(frozen=True)
class Do:
    """A call of the program, the same on all members: `peers` of a transfer, by global ranks."""

    group: str
    name: str
    elements: int = 4
    dtype: str = "Float"
    waits: bool = True
    peers: tuple[int, int] | None = None


@dataclass
class Rank:
    rank: int
    todo: list[Do]
    at: int = 0
    made: list[tuple[Do, int, int]] = field(default_factory=list)  # with its number and the time
    stops_before: int | None = None
    gone: bool = False
    numbers: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)


@dataclass
class World:
    """Groups by name with their members, and what each rank does."""

    groups: dict[str, tuple[int, ...]]
    ranks: list[Rank]
    backend: str = "nccl"
    now_ns: int = 1_000 * S

    def run(self) -> World:
        """Let all ranks go on until none can."""
        moved = True
        while moved:
            moved = False
            for rank in self.ranks:
                while self._step(rank):
                    moved = True
        return self

    def _step(self, rank: Rank) -> bool:
        if rank.made and rank.made[-1][0].waits and not self.done(rank, len(rank.made) - 1):
            return False
        if rank.at >= len(rank.todo) or rank.at == rank.stops_before:
            return False
        do = rank.todo[rank.at]
        counted = rank.sent if do.peers else rank.numbers
        counted[do.group] = counted.get(do.group, 0) + 1
        self.now_ns += random.Random(self.now_ns).randrange(1000, 10**6)
        rank.made.append((do, counted[do.group], self.now_ns))
        rank.at += 1
        return True

    def done(self, rank: Rank, index: int) -> bool:
        do, number, _ = rank.made[index]
        if do.peers:
            return self._transferred(rank, do)
        for member in self.groups[do.group]:
            found = next(
                (d for d, n, _ in self.ranks[member].made if not d.peers and (d.group, n) == (do.group, number)), None
            )
            if found is None or found.name != do.name:
                return False
            if (found.elements, found.dtype) != (do.elements, do.dtype) and do.name not in UNEVEN:
                return False
        return True

    def _transferred(self, rank: Rank, do: Do) -> bool:
        assert do.peers is not None
        other = self.ranks[do.peers[1] if rank.rank == do.peers[0] else do.peers[0]]
        mine = sum(d.peers == do.peers for d, _, _ in rank.made)
        return sum(d.peers == do.peers for d, _, _ in other.made) >= mine

    def records(self, *, buffer: int = 2000, after_s: float = 5.0) -> list[FlightRecord]:
        """Return the records of the ranks that have not gone."""
        return [self._record(rank, buffer, self.now_ns + int(after_s * S)) for rank in self.ranks if not rank.gone]

    def _record(self, rank: Rank, buffer: int, time_ns: int) -> FlightRecord:
        entries, op_ids, last = [], dict[str, int](), dict[str, int]()
        for index, (do, number, created_ns) in enumerate(rank.made):
            op_ids[do.group] = op_ids.get(do.group, 0) + 1
            last[do.group] = last.get(do.group, 0) if do.peers else number
            if do.peers and self.backend == "gloo":
                continue
            done = self.done(rank, index)
            entries.append(self.entry(rank, do, number, created_ns, op_ids[do.group], last[do.group], done=done))
        mine = {name: members for name, members in self.groups.items() if rank.rank in members}
        config = {name: GroupConfig(_description(name), members) for name, members in mine.items()}
        if self.backend == "gloo":
            config = {"": GroupConfig("", tuple(range(len(self.ranks))) if len(self.groups) == 1 else ())}
        kept = entries[-buffer:]
        trace = Trace(tuple(kept), config, {}, 0, "2.10")
        node = f"n{rank.rank // 2 + 1}"
        return FlightRecord("job-1", 1, node, rank.rank, time_ns, "socket", trace=trace)

    def entry(
        self, rank: Rank, do: Do, number: int, created_ns: int, op_id: int, last: int, *, done: bool
    ) -> Collective:
        """Return what the recorder has of a call."""
        title = do.name
        elements = do.elements
        if do.peers:
            members = self.groups[do.group]
            source, destination = (members.index(peer) for peer in do.peers)
            sends = rank.rank == do.peers[0]
            title = f"send {source}->{destination}" if sends else f"recv {destination}<-{source}"
        elif do.name in UNEVEN:
            elements += rank.rank
        gloo = self.backend == "gloo"
        return Collective(
            collective_seq_id=last,
            p2p_seq_id=number if do.peers else 0,
            op_id=op_id,
            profiling_name=f"{self.backend}:{title}",
            process_group=(do.group, _description(do.group)),
            time_created_ns=created_ns,
            input_sizes=() if do.name == "barrier" else ((do.elements if do.name == "gather" else elements,),),
            input_dtypes=() if do.name == "barrier" else (do.dtype,),
            output_sizes=((do.elements,),) if do.name == "scatter" else (),
            output_dtypes=(do.dtype,) if do.name == "scatter" else (),
            state="scheduled" if gloo or not done else "completed",
            retired=done,
            is_p2p=do.peers is not None,
        )


def _description(group: str) -> str:
    return "default_pg" if group == "0" else f"g{group}"


def program(
    rng: random.Random, world: int, length: int, backend: str = "nccl"
) -> tuple[dict[str, tuple[int, ...]], list[Do]]:
    """Return groups, and calls of a training loop in them; each group of three ranks at least is used early."""
    groups = {"0": tuple(range(world))}
    for index in range(rng.randrange(0, 3)):
        members = tuple(sorted(rng.sample(range(world), rng.randrange(3, world + 1))))
        groups[str(index + 1)] = members
    loop = []
    for _ in range(rng.randrange(2, 6)):
        group = rng.choice(list(groups))
        name = rng.choice((*OPERATIONS, *UNEVEN))
        loop.append(Do(group, name, rng.choice((1, 4, 4096)), rng.choice(("Float", "BFloat16", "Long"))))
        if rng.random() < 0.3:
            loop.append(Do("0", "transfer", 4, peers=tuple(rng.sample(range(world), 2))))  # type: ignore[arg-type]
        if rng.random() < 0.2:
            loop[-1] = replace(loop[-1], waits=False)
    first = [Do(group, "broadcast") for group in groups]
    return groups, (first + loop * length)[: length + len(first)]


def world_of(groups: dict[str, tuple[int, ...]], calls: list[Do], backend: str = "nccl") -> World:
    """Return a world whose ranks make their part of these calls."""
    size = len(groups["0"])
    ranks = [Rank(rank, [do for do in calls if takes_part(groups, do, rank)]) for rank in range(size)]
    return World(groups, ranks, backend)


def takes_part(groups: dict[str, tuple[int, ...]], do: Do, rank: int) -> bool:
    return rank in (do.peers if do.peers else groups[do.group])
