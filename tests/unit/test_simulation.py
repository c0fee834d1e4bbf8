"""The simulator: its clusters survive every kind of failure, and it notices when the code under test is broken."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from simulation import stopping as simulated_stops
from simulation.cluster import ClusterOptions
from simulation.coroutine import get_coroutine
from simulation.faults import WEIGHTS
from simulation.filesystem import STALE_S, CachingClient, ClientCache
from simulation.run import Failed, main, simulate, simulate_many

from ftslurm.agent.courier import Courier
from ftslurm.agent.local_round import LocalRound
from ftslurm.agent.loop import AgentLoop
from ftslurm.monitor import stop_page
from ftslurm.monitor.stop_page import StopPage
from ftslurm.observed_time import ObservedTime
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import State
from ftslurm.records.stop import Stop, StopVote
from ftslurm.rendezvous import member, running
from ftslurm.rendezvous.abandonment import Abandonment
from ftslurm.rendezvous.contacts import Contacts
from ftslurm.rendezvous.liveness import Liveness
from ftslurm.rendezvous.member import Member
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.commits import Commits
from ftslurm.testing.memoryfs import Crash, MemoryFileSystem

pytestmark = pytest.mark.exhaustive

# Kinds that need others: a node returns once it is gone.
COMPANY = {"node returns": ("agent killed",), "other options": ("agent killed",), "lost reply: link": ("rank exits",)}
NAMES = {"reader meets": "stale handle"}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_clusters_survive_this_kind_of_fault(kind: str) -> None:
    seeds = range(100, 106)
    clusters = [ClusterOptions(seed, (2, 4), 5, (kind, *COMPANY.get(kind, ()))) for seed in seeds]
    tally = simulate_many(clusters)
    struck = [name for name in tally.faults if name == kind or NAMES.get(name.rpartition(" ")[0]) == kind]
    assert struck, f"seeds {seeds}: {kind} never struck, only {dict(tally.faults)}"


@pytest.mark.parametrize("first", range(1, 1001, 100))
def test_a_hundred_small_clusters_survive_a_mixture_of_faults(first: int) -> None:
    """Ten times a hundred; a broken invariant is reported with its seed."""
    tally = simulate_many([ClusterOptions(seed, (2, 3), 6) for seed in range(first, first + 100)])
    print(f"seeds {first} to {first + 99}: {tally.faults.total()} faults")
    assert tally.clusters == 100
    assert tally.faults.total() >= 600, f"seeds from {first}"


@pytest.mark.parametrize("first", range(1, 1001, 100))
def test_pauses_of_up_to_five_seconds_and_blocked_datagrams_cost_no_node(first: int) -> None:
    """Ten times a hundred; a node that is lost though it lives is reported with its seed."""
    kinds = ("node pauses", "datagrams blocked")
    tally = simulate_many([ClusterOptions(seed, (2, 4), 6, kinds) for seed in range(first, first + 100)])
    print(f"seeds {first} to {first + 99}: {tally.faults.total()} faults")
    assert all(tally.faults[kind] >= 100 for kind in kinds), f"seeds from {first}: {dict(tally.faults)}"


def test_a_seed_gives_the_same_history_each_time() -> None:
    histories = []
    for _ in range(2):
        _, cluster = simulate(ClusterOptions(7, (3, 3), 20))
        histories.append((list(cluster.events), cluster.counts, cluster.stale, cluster.now(), cluster.server.files()))
    assert histories[0] == histories[1]


def rename_instead_of_link(self: FencedCell, temporary: str, token: int, nonce: str) -> bool:
    self._fs.rename(temporary, self._file(token))
    return True


def keep_stale_decision(self: Member, state: State) -> bool:
    newest, won = self._cell.set(state.encode(), self._token or None)
    self._state, self._token = state, newest.token
    return won


def publish_previous_record(self: Courier, record: NodeRecord) -> None:
    with self._condition:
        self._record, self._handed_over = vars(self).get("_handed_over", record), record  # type: ignore[attr-defined]
        self._notify()


def ignore_stalls(self: Liveness, prompt_s: float) -> None:
    self._prompt_s, self._last_changes = 1e9, {}


def overlook_passed_ranks(
    stop: Stop, pages: dict[int, tuple[StopPage, bool]], now_ns: int, *before: object
) -> StopVote:
    return replace(stop_page.vote(stop, pages, now_ns), passed=False)


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "two writers may win": lambda patch: patch.setattr(FencedCell, "_link", rename_instead_of_link),
    "directories are never read anew": lambda patch: patch.setattr(CachingClient, "refresh", lambda self, path: None),
    "a stall counts as silence": lambda patch: patch.setattr(Liveness, "__init__", ignore_stalls),
    "a decision on a stale state is kept": lambda patch: patch.setattr(Member, "_set", keep_stale_decision),
    "workers of a finished round run on": lambda patch: patch.setattr(LocalRound, "is_current", lambda *_: True),
    "the loop drops stops": lambda patch: patch.setattr(AgentLoop, "_signal", lambda *_: None),
    "the courier publishes the previous record": lambda patch: patch.setattr(
        Courier, "publish", publish_previous_record
    ),
    "the courier raises": lambda patch: patch.setattr(Courier, "_post_view", lambda *_: {}["view"]),
    "no node takes the lease": lambda patch: patch.setattr(Member, "_coordinator_is_lost", lambda self, state: False),
    "a job takes a run from a living one": lambda patch: patch.setattr(Abandonment, "holds", lambda *_: True),
    "a lease without a new term": lambda patch: patch.setattr(
        member, "take_lease", lambda s, n, i: replace(s, coordinator=replace(s.coordinator, node=n, incarnation=i))
    ),
    "commits of past rounds stay possible": lambda patch: patch.setattr(Commits, "revoke", lambda *_: ([], 0)),
    "a rank that has passed the proposed step is overlooked": lambda patch: patch.setattr(
        simulated_stops, "vote", overlook_passed_ranks
    ),
    "an outage counts as silence": lambda patch: patch.setattr(ObservedTime, "failed", lambda self: None),
    "silence of datagrams is a death": lambda patch: patch.setattr(
        Contacts, "evidence", lambda self, record: "silence" if self.suspects(record) else None
    ),
    "a member that is no longer heard is in no hurry": lambda patch: patch.setattr(
        Contacts, "hears", lambda self, record: self.of(record) is not None
    ),
    "restarts cost nothing": lambda patch: patch.setattr(
        running, "_restart", lambda state, seen, what: replace(state, phase=running.FORMING)
    ),
}


# Where all kinds would take long to meet the bug.
KINDS = {"commits of past rounds stay possible": ("rank exits", "rank killed", "agent frozen", "node stalls")}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found_and_reported_with_its_seed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    with pytest.raises(Failed, match=r"^seed \d+: "):
        simulate_many([ClusterOptions(seed, (2, 4), 30, KINDS.get(bug, ())) for seed in range(1, 161)])


def test_the_command_prints_seeds_and_faults_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--clusters", "2", "--seed", "5", "--faults-per-cluster", "4", "--nodes", "2-3"]) == 0
    output = capsys.readouterr().out
    assert "seeds 5 to 6" in output
    assert "over 2 clusters" in output
    assert "no invariant broken" in output


def test_the_command_prints_how_to_replay_a_broken_invariant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    BUGS["workers of a finished round run on"](monkeypatch)
    assert main(["--clusters", "50", "--faults-per-cluster", "10", "--nodes", "2"]) == 1
    output = capsys.readouterr().err
    assert "before it:" in output
    assert "again: scripts/simulate --replay " in output


@pytest.mark.parametrize("arguments", [["--nodes", "3-2"], ["--nodes", "0"], ["--kinds", "bad luck"]])
def test_the_command_refuses_what_it_cannot_do(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


# The parts


def two_clients() -> tuple[MemoryFileSystem, CachingClient, list[float]]:
    now = [0.0]
    server = MemoryFileSystem()
    server.makedirs("/d")
    return server, CachingClient(server, ClientCache(lambda: now[0], random.Random(0), lambda kind: None)), now


def test_a_name_that_was_absent_stays_absent_for_a_while() -> None:
    server, client, now = two_clients()
    with pytest.raises(FileNotFoundError):
        client.read("/d/a")
    server.create("/d/a", b"new", durable=False)
    with pytest.raises(FileNotFoundError):
        client.read("/d/a")
    now[0] = STALE_S + 1
    assert client.read("/d/a") == b"new"


@pytest.mark.parametrize(
    "act",
    [
        lambda client: client.refresh("/d"),
        lambda client: client.create("/d/own", b"", durable=False),
        lambda client: client.rename("/d/x", "/d/y"),
    ],
)
def test_opening_the_directory_or_an_own_change_in_it_drops_the_cache(
    act: Callable[[CachingClient], None],
) -> None:
    server, client, _ = two_clients()
    server.create("/d/x", b"", durable=False)
    with pytest.raises(FileNotFoundError):
        client.read("/d/a")
    server.create("/d/a", b"new", durable=False)
    act(client)
    assert client.read("/d/a") == b"new"


def test_a_file_that_was_renamed_over_is_sometimes_read_with_its_old_content() -> None:
    server, client, _ = two_clients()
    read = set()
    for i in range(50):
        server.create("/d/t", b"%d" % i, durable=False)
        server.rename("/d/t", "/d/a")
        read.add(client.read("/d/a") == b"%d" % i)
    assert read == {True, False}


def test_work_of_a_coroutine_waits_where_it_parks_and_goes_on_there() -> None:
    done: list[str] = []
    one = get_coroutine()

    def work() -> None:
        done.append("begun")
        one.park()
        done.append("gone on")

    assert one.run(work) is False
    done.append("others")
    assert one.resume() is True
    assert done == ["begun", "others", "gone on"]


def test_work_of_a_coroutine_that_is_killed_ends_as_a_crash() -> None:
    ended: list[BaseException] = []
    one = get_coroutine()

    def work() -> None:
        try:
            one.park()
        except BaseException as error:
            ended.append(error)
            raise

    one.run(work)
    one.kill()
    assert isinstance(ended[0], Crash)


def test_an_exception_of_a_coroutine_reaches_the_caller() -> None:
    def work() -> None:
        raise KeyError("a")

    with pytest.raises(KeyError):
        get_coroutine().run(work)
