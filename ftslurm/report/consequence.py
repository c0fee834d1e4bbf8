"""What a failure with broken connections follows from: by the records of the other ranks, not by its message (pure).

A message ("timed out", "Connection closed by peer") shows only that another rank was awaited. It is a consequence if
the records have an event that it can follow from: another rank's earlier end, or a rank that did not fail while the
others lost their connection to it. Without one it is a failure with a reason of its own. Lost nodes and hangs are
judged before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.failures.nccl import late_ranks
from ftslurm.failures.own_code import gave_up_waiting, is_library, own_frame
from ftslurm.pattern import pattern
from ftslurm.report.facts import Clocks, RoundFiles, Worker
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.printed_last import output_end
from ftslurm.report.root_cause import Follower
from ftslurm.text import clip, ranges

BY_ITSELF = ("stop-reaction", "round-over", "horovod-end", "cut-in-collective")
"""Causes whose exception is by itself the proof of what it follows from: a signal, a newer round, a shutdown; and those
that no further text can explain."""
OF_PEERS = (
    "peer-reset",
    "collective-timeout",
    "nccl",
    "nccl-timeout",
    "nccl-abort",
    "late-rank",
    "collective-mismatch",
)
"""Causes whose exceptions a rank raises in a collective because of the others."""
FINISHED, ABSENT = "finished", "absent"
SHOWN, RANKS_SHOWN = 20, 2
_C10D = "/torch/distributed/distributed_c10d.py"
_OF_MEETING = ("master-name", "master-unreachable", "rendezvous-timeout")
"""Causes that a rank which was not started leaves to the others."""
_TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
"""Functions of torch.distributed by which two ranks do different things at different places."""
_BROKEN = ("peer-reset", "nccl", "nccl-abort")
_SOCKETS = ("ConnectionResetError", "ConnectionAbortedError", "ConnectionRefusedError", "BrokenPipeError", "EOFError")
"""What the program's own connections raise when the process at the other end has gone."""
_OF_GROUP = pattern(r"keys: \S*(default_pg/\d+//(cpu|cuda)|store_based_barrier|worker_count)")
"""Keys by which the members of a process group of torch meet."""
_ENDING_NS = 10 * 10**9
"""Time from the moment at which a rank closes its connections until its process has ended."""
_SOON_NS = 2 * 10**9
"""Time between a time-out and the connections that break because of it, until these are caught."""

_ADVICE = {
    "peer-reset": "No end of another rank was recorded before it: check the network between the nodes, and whether a"
    " rank leaves its process group early.",
    "nccl": "No failure of another rank was recorded before it: NCCL_DEBUG=WARN shows NCCL's own reason.",
}
_AT_START = (
    "If no rank had ended before: see GLOO_SOCKET_IFNAME, and to which address each node's name resolves on the others."
)
_IN_LOGS = (
    "These logs have no earlier failure of another rank: it may have finished early, hung, or its output is elsewhere."
)
_AGAIN_IN_LOGS = (
    "No rank of this attempt failed before it: see the attempts before; what was left of them, as a port or a"
    " store, may"
    " have been in the way."
)
PARTED = (
    "All ranks of a group must call the same collectives in the same order: see what led these to different places."
)
"""Advice on ranks whose calls do not match."""
_OPPOSITE = (
    "The ranks wait for each other in transfers that do not match: compare peer, tag, group and size on both sides."
)
PORT = "An adapter reported an error by itself: check that port, its cable and switch (ibstat, perfquery) on that node."
ALL_RECEIVE = "All ranks wait to receive, and none of them sends: let one send first, or use isend and irecv."
IN_ONE_CALL = (
    "Look for a rank that is missing among these; if none is, all waited in the same call: suspect the network, or a"
    " GPU."
)
"""Advice on ranks of a log whose watchdogs gave up in one call."""
PLACES_SHOWN = 3
Places = Sequence[tuple[str, tuple[int, ...]]]
"""Where ranks waited, as "file:line in function", and which."""
_WAITED = "No rank had failed or ended before it: compare where the ranks wait (TORCH_DISTRIBUTED_DEBUG=DETAIL)."


@dataclass(frozen=True)
class Origin:
    """What a failure follows from.

    Attributes:
        kind: FINISHED: ranks had ended with success; ABSENT: ranks did not fail, nor come to where the others waited.
        ranks: these.
        named: whether a message of the runtime names them.
    """

    kind: str
    ranks: tuple[int, ...]
    named: bool = False

    @property
    def name(self) -> str:
        """``rank 2``."""
        return f"{'rank' if len(self.ranks) == 1 else 'ranks'} {clip(ranges(self.ranks), SHOWN)}"

    @property
    def short(self) -> str:
        """``rank 2 had not failed``."""
        return f"{self.name} {'had finished' if self.kind == FINISHED else 'had not failed'}"

    @property
    def text(self) -> str:
        """The same as a sentence."""
        if self.kind == FINISHED:
            return f"this follows from another rank's end: {self.short} with exit code 0"
        it = "it" if len(self.ranks) == 1 else "them"
        return f"{self.short}: the others {'waited' if self.named else 'may have waited'} for {it}"


def origin(
    files: RoundFiles,
    clocks: Clocks,
    failed: Sequence[FailedWorker],
    following: Mapping[str, Sequence[Follower]],
    waiting: Collection[int] = (),
) -> Origin | None:
    """Return what the first of failures, all with broken connections, follows from; None: of nothing that is recorded.

    Args:
        files: the round.
        clocks: the nodes' clocks.
        failed: the judged failures, first one first.
        following: further ranks that failed so.
        waiting: ranks that were where these failed, by their stacks.
    """
    first = failed[0]
    finished = [worker.rank for node, worker in _finished(files) if _before(clocks, files, node, worker, first)]
    if finished:
        return Origin(FINISHED, tuple(finished))
    ranks = {each.rank for each in failed} | {each.rank for group in following.values() for each in group}
    messages = (each.exception.message for each in failed if each.exception is not None)
    named = {rank for text in messages for rank in late_ranks(text)} - ranks
    if named:
        return Origin(ABSENT, tuple(sorted(named)), named=True)
    absent = bystanders(files, {*ranks, *waiting})
    return Origin(ABSENT, tuple(absent)) if absent else None


def whereabouts(files: RoundFiles, found: Origin) -> list[str]:
    """Return where the ranks were that did not fail, and what they printed last, as far as recorded."""
    lines: list[str] = []
    for rank in found.ranks[:RANKS_SHOWN]:
        where = stack_place(files, rank) if found.kind == ABSENT else ""
        lines += [f"rank {rank} was {where}"] if where else []
        lines += output_end(files, rank)
    return lines


def finished(files: RoundFiles) -> list[int]:
    """Return the ranks that had ended with success while the round went on."""
    return sorted(worker.rank for _, worker in _finished(files))


def stack_place(files: RoundFiles, rank: int) -> str:
    """Return where a rank was, by its stacks; empty: unknown."""
    if rank not in files.stacks:
        return ""
    from ftslurm.monitor.triage import describe, triage

    groups = triage(files.stacks.values()).groups
    return next((describe(group) for group in groups if rank in group.ranks), "")


def waiting_places(failed: Sequence[FailedWorker], following: Mapping[str, Sequence[Follower]]) -> Places:
    """Return where ranks waited for each other until their time was over, and which ones; the most ranks come first.

    Empty if no rank's time was over, or a rank did not wait.

    Args:
        failed, following: see `origin`.
    """
    timed_out = any(each.cause.cascade and each.cause.name not in _BROKEN for each in failed)
    unnamed = any(each.rank < 0 for each in failed)  # of a log
    if not timed_out or unnamed or not all(each.cause.cascade for each in failed):
        return []
    places: dict[str, set[int]] = {}
    for each in failed:
        places.setdefault(own_frame(each.frames).place if each.frames else "", set()).add(each.rank)
    for follower in (each for group in following.values() for each in group):
        places.setdefault(follower.where or "", set()).add(follower.rank)
    places.pop("", None)
    return sorted(((place, tuple(sorted(ranks))) for place, ranks in places.items()), key=lambda one: -len(one[1]))


def is_event_of_port(note: str) -> bool:
    """Whether a note on a log states an event of an adapter, see `ftslurm.report.logs.notes`."""
    return ": NET/IB" in note and " event" in note


def only_receive(failed: Sequence[FailedWorker]) -> bool:
    """Whether all of these ranks waited to receive from another one."""
    calls = ([frame.function for frame in each.frames if frame.file.endswith(_C10D)] for each in failed)
    return all(own[-1:] in (["recv"], ["wait"]) and "recv" in own for own in calls)


def parted(places: Places) -> str:
    """``the ranks waited at different places: ranks 1-3 at train.py:15 in step, rank 0 at train.py:21 in evaluate``."""
    shown = [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {clip(ranges(ranks), SHOWN)} at {place.rpartition('/')[2]}"
        for place, ranks in places[:PLACES_SHOWN]
    ]
    more = f", and {len(places) - PLACES_SHOWN} more" if len(places) > PLACES_SHOWN else ""
    return f"the ranks waited at different places: {', '.join(shown)}{more}"


def bystanders(files: RoundFiles, failed: Collection[int]) -> list[int]:
    """Return the few ranks that ran until ftslurm stopped them while most others failed; empty if there are many."""
    workers = [worker for node in files.nodes for worker in node.workers]
    running = [worker.rank for worker in workers if worker.rank not in failed and worker.ended_ns is None]
    stopped = [worker.rank for worker in workers if worker.rank not in failed and worker.stopped_by_ftslurm]
    return [] if running or len(stopped) * 2 > len(failed) else sorted(stopped)


def _finished(files: RoundFiles) -> Iterable[tuple[str, Worker]]:
    for node in files.nodes:
        for worker in node.workers:
            if worker.ended_ns is not None and not worker.failed and not worker.stopped_by_ftslurm:
                yield node.node, worker


def _before(clocks: Clocks, files: RoundFiles, node: str, worker: Worker, first: FailedWorker) -> bool:
    """Whether a rank's end may have preceded a failure."""
    if worker.ended_ns is None or first.time_ns is None:
        return True
    doubt = clocks.between(files.number, (node, worker.ended_ns), (first.node, first.time_ns))
    ended_ns = clocks.comparable_ns(files.number, node, worker.ended_ns)
    # A rank closes its connections before its process ends, which may take long; and ftslurm had not stopped it.
    return ended_ns <= clocks.comparable_ns(files.number, first.node, first.time_ns) + doubt.ns + _ENDING_NS


def most_telling_first(clocks: Clocks, number: int, ordered: Sequence[FailedWorker]) -> list[FailedWorker]:
    """Return the failures of a round so that the first one is none that a time-out of another rank explains.

    A rank that gives up closes its connections: its peers' connections break, torch's and those of the program itself.
    Where all have broken connections, its peers may catch that before its own exception is recorded.

    Args:
        clocks: the nodes' clocks.
        number: the round.
        ordered: the failures, primary ones first.
    """
    if not ordered:
        return []
    first = ordered[0]
    if first.cause.name == "write-failed":
        # torch gives no reason; the system gave one to another rank.
        full = next((each for each in ordered if each.cause.name in ("disk-full", "quota")), None)
        return [full, *(each for each in ordered if each is not full)] if full is not None else list(ordered)
    # What could not be started was missed where all meet.
    if _of_store(first) and "clients joined" not in first.what:
        # How many came says more than a key that was not set.
        counted = next((each for each in ordered if _of_store(each) and "clients joined" in each.what), None)
        if counted is not None:
            return [counted, *(each for each in ordered if each is not counted)]
    absent = next((each for each in ordered if each.kind == "spawn"), None)
    if first.cause.name == "rendezvous-timeout":
        # Or it came, and lost the store.
        absent = absent or next((each for each in ordered if each.cause.cascade and _meets(each)), None)
    if absent is not None and first.cause.name in _OF_MEETING:
        return [absent, *(each for each in ordered if each is not absent)]
    gave_up = [each for each in ordered[1:] if each.cause.cascade and each.cause.name not in _BROKEN]
    if not first.cause.cascade:
        by_peer = _is_socket(first)
        better = next((each for each in gave_up if by_peer and _certainly_before(clocks, number, each, first)), None)
        if by_peer and better is None:
            # At the same time, a rank with a reason of its own explains a connection that broke.
            own = [each for each in ordered[1:] if not each.cause.cascade and not _is_socket(each)]
            better = next((each for each in own if not _certainly_before(clocks, number, first, each)), None)
    elif first.cause.name in _BROKEN:
        better = next((each for each in gave_up if _within(clocks, number, first, each)), None)
    else:
        better = None
    return list(ordered) if better is None else [better, *(each for each in ordered if each is not better)]


def _of_store(failed: FailedWorker) -> bool:
    return failed.exception is not None and failed.exception.type == "DistStoreError"


def _is_socket(failed: FailedWorker) -> bool:
    return failed.exception is not None and failed.exception.type in _SOCKETS


def _meets(failed: FailedWorker) -> bool:
    return any("/elastic/rendezvous/" in frame.file for frame in failed.frames)


def _certainly_before(clocks: Clocks, number: int, one: FailedWorker, other: FailedWorker) -> bool:
    if one.time_ns is None or other.time_ns is None:
        return False
    doubt = clocks.between(number, (one.node, one.time_ns), (other.node, other.time_ns))
    times = [clocks.comparable_ns(number, each.node, each.time_ns or 0) for each in (one, other)]
    return times[1] - times[0] > doubt.ns


def _within(clocks: Clocks, number: int, one: FailedWorker, other: FailedWorker) -> bool:
    if one.time_ns is None or other.time_ns is None:
        return one.time_ns is other.time_ns
    doubt = clocks.between(number, (one.node, one.time_ns), (other.node, other.time_ns))
    times = [clocks.comparable_ns(number, each.node, each.time_ns or 0) for each in (one, other)]
    return times[1] - times[0] <= doubt.ns + _SOON_NS


def is_own_statement(failed: FailedWorker) -> bool:
    """Whether the program itself raised the exception, or what it was raised from, so that its words are its own."""
    exception = failed.exception
    while exception is not None and exception.cause is not None:
        exception = exception.cause
    if (
        exception is None
        or not exception.frames
        or gave_up_waiting(exception.type, exception.message, exception.frames)
    ):
        return False
    frame = exception.frames[-1]
    return not is_library(frame.file) and (frame.source or "").lstrip().startswith("raise")


def advice(
    worker: FailedWorker, found: Origin | None, world: int, *, recorded: bool, places: int = 1, attempt: int = 1
) -> str | None:
    """Return advice on a broken connection that agrees with what it follows from; None: that of its cause is right.

    Args:
        worker: the first failure.
        found: what it follows from.
        world: the number of ranks; a single one has no peers.
        recorded: whether the ends of the other ranks are recorded, as they are not in logs.
        places: the number of places at which the ranks waited.
        attempt: in logs, which one it was.
    """
    if found is not None:
        it = "it" if len(found.ranks) == 1 else "they"
        if found.kind == FINISHED:
            return "Ranks must take part in equally many collectives: see why some had no more work."
        return f"Look at what {found.name} did while the others waited, and whether {it} took another path."
    if worker.cause.name in ("master-unreachable", "late-rank", "peer-lost"):
        return None
    by_store = _of_store(worker)
    if by_store and "clients joined" in worker.what:
        return "Fewer processes joined than the script's world_size: see which did not come, and where to."
    if "connectFullMesh" in worker.what:
        return _AT_START
    if not recorded:
        usual = worker.cause.name in ("peer-reset", "collective-timeout")
        return (_AGAIN_IN_LOGS if attempt > 1 else _IN_LOGS) if usual else None
    if worker.exception is not None and by_store:
        if _OF_GROUP.search(worker.exception.message):
            came = f", of which there are {world} here" if world else ""
            return f"Not all members of a process group came: compare its world_size with the ranks{came}."
        return "No rank had set these keys of the store in time: see which one should have."
    if places > 1:
        transfers = worker.frames and worker.frames[-1].function in _TRANSFERS
        return _OPPOSITE if transfers else PARTED
    if world == 1:
        return "It is the only rank: nothing else could come to where it waited."
    return _ADVICE.get(worker.cause.name, _WAITED)
