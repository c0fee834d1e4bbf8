"""Invariants: a ledger of all publications and spawned workers, checked at each entry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from ftslurm.agent.actions import Assignment
from ftslurm.dataclasses import dataclass
from ftslurm.records.state import CLOSED, RUNNING, STOPPED, UNREACHABLE, Closed, Lease, LostNode, State
from ftslurm.sharedfs.cell import KEPT
from simulation.agent import VirtualAgent


class Broken(BaseException):
    """An invariant does not hold; the text has the invariant and the facts.

    No `Exception`: the code under test, which handles its own defects, must not handle this.
    """


def check(holds: bool, what: str, *facts: object) -> None:
    """Raise `Broken` unless `holds`."""
    if not holds:
        raise Broken(": ".join([what, *(str(fact) for fact in facts)]))


@dataclass(frozen=True)
class AgentStatus:
    """Queries of the ledger to the cluster.

    Attributes:
        was_impaired: whether this incarnation recently had a reason to be silent (dead, frozen, stalled alone, ...).
        any_unimpaired: whether an agent of that attempt had none.
    """

    was_impaired: Callable[[str], bool]
    any_unimpaired: Callable[[str], bool]


class Ledger:
    """All observed changes of the run directory and of the agents."""

    def __init__(self, agent_status: AgentStatus) -> None:
        self._agent_status = agent_status
        self.token = 0
        self.state: State | None = None
        self.closed: dict[str, Closed] = {}
        self._contents: dict[str, bytes] = {}
        self._worlds: dict[tuple[str, int], State] = {}
        self._runners: dict[tuple[str, int, int], str] = {}
        self._costs: Counter[str] = Counter()
        self._left: dict[tuple[str, int], int | None] = {}
        self.rounds = 0
        self.committed = 0

    # The fenced state

    def on_generation(self, path: str, token: int, content: bytes, state: State) -> None:
        """Check a new generation."""
        check(token == self.token + 1, "a token was skipped or came twice", token, self.token)
        check(path not in self._contents, "a token was given twice", path)
        self._contents[path] = content
        if self.state is not None:
            self._follows(self.state, state)
        self._sound(state)
        self.token, self.state = token, state
        if state.closed is not None:
            self.closed.setdefault(state.attempt, state.closed)

    def on_overwritten(self, path: str, content: bytes | None) -> None:
        """Check the replacement (`content`) or removal (None) of a file."""
        if path in self._contents:
            old = path.rpartition("/")[2] <= f"{self.token - KEPT:012d}.json"
            before = json.loads(self._contents[path])
            retired = content is not None and json.loads(content) == {**before, "retired": True, "value": None}
            check(old and retired, "a generation was changed after it was published", path)
            self._contents[path] = content or b""

    def contents_hold(self, files: dict[str, bytes]) -> None:
        """Compare every generation with its content when it was published, or retired."""
        for path, content in self._contents.items():
            check(files.get(path) == content, "a generation's content has changed", path)

    def _sound(self, state: State) -> None:
        used = (state.restarts_used, state.max_restarts)
        check(used[0] <= used[1], "more restarts than allowed", used)
        check((state.phase == CLOSED) == (state.closed is not None), "closed without a verdict", state.phase)
        check(state.attempts[-1] == state.attempt, "the attempt is not the last one", state.attempts)
        check(len(set(state.attempts)) == len(state.attempts), "an attempt came back", state.attempts)
        if state.phase == RUNNING:
            self._sound_world(state)

    def _sound_world(self, state: State) -> None:
        world = state.participants
        where = f"round {state.round} of attempt {state.attempt}"
        check(state.min_nodes <= len(world) <= state.max_nodes, f"{where} runs outside min:max", len(world))
        check(len({p.node for p in world}) == len(world), f"{where} has a node twice", world)
        first = 0
        for group_rank, participant in enumerate(world):
            check(participant.group_rank == group_rank, f"{where}: group ranks are not in order", world)
            check(participant.first_rank == first, f"{where}: ranks have holes or overlap", world)
            first += participant.slots
        check(state.world_size == first, f"{where}: wrong world size", state.world_size, first)
        check(state.master is not None, f"{where} has no master")

    def _follows(self, old: State, new: State) -> None:
        check(new.round >= old.round, "the round's number went back", old.round, new.round)
        check(new.coordinator.term >= old.coordinator.term, "the term went back", old.coordinator, new.coordinator)
        if new.attempt != old.attempt:
            self._attempt_follows(old, new)
            return
        check(old.phase != CLOSED, "a closed attempt was changed", new)
        check(new.attempts == old.attempts, "attempts changed within one", new.attempts)
        check(new.round <= old.round + 1, "a round was skipped", old.round, new.round)
        check(new.restarts_used >= old.restarts_used, "a restart was given back", new.restarts_used)
        if new.round == old.round:
            check(new.participants == old.participants, "a round has two worlds", old.participants, new.participants)
            check(new.master == old.master, "a round has two masters", old.master, new.master)
        else:
            self._round_follows(old, new)
        if (new.coordinator.node, new.coordinator.incarnation) != (old.coordinator.node, old.coordinator.incarnation):
            self._lease_changed(old.coordinator, new.coordinator)
        for gone in new.lost[len(old.lost) :]:
            self._lost(gone)

    def _attempt_follows(self, old: State, new: State) -> None:
        check(new.attempts[:-1] == old.attempts, "a new attempt lacks the earlier ones", old.attempts, new.attempts)
        check(new.round == old.round, "a new attempt did not continue the round numbers", old.round, new.round)
        same_job = old.attempt.rpartition(".")[0] == new.attempt.rpartition(".")[0]
        if old.phase != CLOSED and not same_job:
            alive = self._agent_status.any_unimpaired(old.attempt)
            check(not alive, "another job took over a run with live agents", old.attempt, new.attempt)

    def _round_follows(self, old: State, new: State) -> None:
        last = new.past(old.round)
        check(last is None or last.ended_ns is not None, "a round began before the last one had ended", old.round)
        if last is not None and last.attempt == new.attempt:
            # A round that ended to admit late nodes is no failure, nor is one that never began.
            joined = last.outcome == STOPPED and str(last.reason).endswith(" joined")
            began = last.failure is None or last.failure.kind != UNREACHABLE
            self._costs[new.attempt] += began and not joined
        cost = self._costs[new.attempt]
        check(
            cost <= new.restarts_used, "a round without a restart from the budget", new.round, cost, new.restarts_used
        )
        self._worlds[new.attempt, new.round] = new
        self.rounds += 1

    def _lease_changed(self, old: Lease, new: Lease) -> None:
        check(new.term == old.term + 1, "a lease changed without a new term", old, new)
        check(self._agent_status.was_impaired(old.incarnation), "a healthy coordinator lost its lease", old, new)

    def _lost(self, gone: LostNode) -> None:
        check(self._agent_status.was_impaired(gone.incarnation), "a healthy node was declared lost", gone)

    def world(self, attempt: str, round_: int) -> State | None:
        """Return the state that formed that round, None without one."""
        return self._worlds.get((attempt, round_))

    # The workers

    def on_spawned(self, agent: VirtualAgent, assignment: Assignment) -> None:
        """Check the workers that an agent has started."""
        where = f"round {assignment.round} of attempt {assignment.attempt} on {agent.node}"
        world = self._worlds.get((assignment.attempt, assignment.round))
        if world is None:
            raise Broken(f"{where}: workers of a round that was never formed")
        part = world.participant(agent.node, agent.record.incarnation)
        if part is None:
            raise Broken(f"{where}: workers on a node that is no participant")
        check(world.master == assignment.master, f"{where}: another master", assignment.master, world.master)
        check(world.world_size == assignment.world_size, f"{where}: another world size", assignment.world_size)
        mine = (assignment.first_rank, assignment.slots, assignment.group_rank)
        check((part.first_rank, part.slots, part.group_rank) == mine, f"{where}: other ranks", mine, part)
        for rank in range(part.first_rank, part.first_rank + part.slots):
            key = (assignment.attempt, assignment.round, rank)
            check(key not in self._runners, f"{where}: rank {rank} runs twice", self._runners.get(key))
            self._runners[key] = agent.record.incarnation

    def on_left(self, agent: VirtualAgent, assignment: Assignment, local_rank: int, step: int, in_vain: bool) -> None:
        """Check a rank that has left by an orderly stop: all ranks leave at the same step.

        Not those that waited in vain: the shared directory had failed for as long as a rank waits.
        """
        key = (assignment.attempt, assignment.round)
        if in_vain:
            self._left[key] = None
        known = self._left.setdefault(key, step)
        what = f"round {assignment.round} of attempt {assignment.attempt}: ranks left at different steps"
        check(known is None or known == step, what, known, step, agent.node, local_rank)

    def is_over(self, assignment: Assignment) -> bool:
        """Return whether that round is no longer the current one."""
        state = self.state
        return (
            state is None
            or state.attempt != assignment.attempt
            or state.phase != RUNNING
            or state.round != assignment.round
        )

    def on_commit(self, round_: int, node: str) -> None:
        """Check a commit of a checkpoint by a rank of that round."""
        what = "a past round's checkpoint became visible after a newer one's"
        check(round_ >= self.committed, what, f"round {round_} on {node}", f"round {self.committed}")
        self.committed = round_

    # The end

    def on_exit(self, agent: VirtualAgent, attempt: str) -> None:
        """Check the exit code of an agent that has left."""
        if agent.leaving:
            return
        verdict = self.closed.get(attempt)
        if verdict is None:
            raise Broken(f"{agent.node} left attempt {attempt}, which is not closed, with code {agent.exit_code}")
        codes = (agent.exit_code, verdict.exit_code)
        check(
            codes[0] == codes[1], f"{agent.node} left attempt {attempt} with another exit code than its verdict", codes
        )
        last = agent.loop.state
        reason = None if last is None or last.closed is None else last.closed.reason
        check(reason == verdict.reason, f"{agent.node} left attempt {attempt} with another reason", reason, verdict)
