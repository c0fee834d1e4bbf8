"""A rank that did not come to where the others gave up, as the first failure in place of the one that noticed (pure).

A monitored barrier and the set-up of process groups are in no record of collectives. Their exceptions, or the ranks
that did not fail, tell who is missing, and the stacks that the agents have collected tell where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.dataclasses import replace
from ftslurm.failures.own_code import own_frame
from ftslurm.monitor.triage import NO_ANSWER, NONE, ODD, Triage, describe, is_held, is_stopped, with_suspects
from ftslurm.pattern import pattern
from ftslurm.records.error import Frame
from ftslurm.report.consequence import ABSENT, Origin
from ftslurm.report.facts import Failure, RoundFiles
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.first_failure import MISSING, TOO_FEW, FirstFailure
from ftslurm.report.hang import hang_failure
from ftslurm.report.root_cause import HANG

MEETINGS = ("init_process_group", "monitored_barrier")
"""Functions of ``torch.distributed`` to which all ranks come, and which are not recorded."""
_C10D = "/torch/distributed/distributed_c10d.py"
_SIZE = pattern(r"\binit_process_group\([^\n]{0,300}?\bworld_size ?= ?(\d{1,6})\b")


def suspects(places: Triage | None, worker: FailedWorker, found: Origin) -> Triage | None:
    """Return the ranks' locations with those as suspects that did not come; None: it is not known where these were.

    Args:
        places: the triage of the ranks' stacks.
        worker: the failure that is the first one otherwise.
        found: what it follows from.
    """
    if places is None or found.kind != ABSENT:
        return None
    held = [group for group in places.groups if is_held(group)]
    unable = {rank for group in held for rank in group.ranks}.intersection(found.ranks)
    # A stop lasts; in the kernel a rank may be for a moment, while the others wait for another one.
    stopped = {rank for group in held if is_stopped(group) for rank in group.ranks}.intersection(found.ranks)
    if stopped or len(unable) == len(found.ranks):
        # Whatever it was to come to, it could not run.
        return with_suspects(places, tuple(sorted(stopped or unable)), NO_ANSWER, found.text)
    if not _meeting(worker.frames):
        return None
    # Who came waits, too, even if it has not given up yet.
    missing = set(found.ranks) - there(places, worker)
    named = with_suspects(places, tuple(sorted(missing)), ODD, found.text)
    located = {rank for group in named.suspects if group.activity is not None for rank in group.ranks}
    return named if missing and located.issuperset(missing) else None


def waits_for_more(places: Triage | None, worker: FailedWorker, found: Origin, world: int | None) -> Triage | None:
    """Return the ranks' locations without a suspect if all ranks of the job are where a larger group is set up.

    Args:
        places, worker, found: see `suspects`.
        world: the number of ranks.
    """
    if places is None or world is None or _meeting(worker.frames) != MEETINGS[0] or found.kind != ABSENT:
        return None
    if not there(places, worker).issuperset(found.ranks):
        return None
    size = _size_of(worker)
    if size is not None and size <= world:
        return None
    size_text = f" (its world_size is {size})" if size is not None else ""
    text = f"all {world} ranks are in {MEETINGS[0]}, and wait for more than the job has{size_text}"
    return with_suspects(places, (), NONE, text)


def there(places: Triage, worker: FailedWorker) -> set[int]:
    """Return the ranks that did not fail, but are in the function in which the others gave up."""
    meeting = _meeting(worker.frames)
    if not meeting:
        return set()
    return {
        rank
        for group in places.groups
        if any(frame.function == meeting and frame.file.endswith(_C10D) for frame in group.frames)
        for rank in group.ranks
    }


def _size_of(worker: FailedWorker) -> int | None:
    """Return the size that the script gives its group as a number, by the lines of its traceback."""
    sources = [frame.source or "" for frame in worker.frames] + (worker.traceback or "")[:65536].split("\n")
    return next((int(size[1]) for size in map(_SIZE.search, sources) if size is not None), None)


def too_few_ranks(
    files: RoundFiles, worker: FailedWorker, verdict: Triage, world: int, step: int | None, cwd: str | None
) -> FirstFailure:
    """Describe as the first failure that the job has too few ranks for a group; see `missing_rank`.

    Args:
        files, worker, step, cwd: as there.
        verdict: the ranks' locations, see `waits_for_more`.
        world: the number of ranks.
    """
    first = hang_failure(files, noticed_by(worker, files.number), verdict, step, cwd)
    advice = f"Compare the script's world_size with WORLD_SIZE, {world} here"
    advice += "." if _size_of(worker) is not None else "; where they agree, a rank came too late."
    frame = own_frame(worker.frames)
    where = f"at {frame.file.rpartition('/')[2]}:{frame.line}"
    hang = {**(first.hang or {}), "verdict": TOO_FEW, "where": where}
    what = verdict.summary
    return replace(first, what=what, signature=f"{HANG}|{TOO_FEW}|{what}", hang=hang, advice=advice)


def missing_rank(
    files: RoundFiles, worker: FailedWorker, verdict: Triage, step: int | None, cwd: str | None
) -> FirstFailure:
    """Describe the ranks that did not come as the first failure.

    Args:
        files: the round.
        worker: the failure by which that was noticed.
        verdict: the ranks' locations, see `suspects`.
        step: the last step of the round.
        cwd: the working directory of its attempt.
    """
    noticed = noticed_by(worker, files.number)
    first = hang_failure(files, noticed, verdict, step, cwd)
    count = sum(len(group.ranks) for group in verdict.suspects)
    if is_held(verdict.suspects[0]):
        it = "it" if count == 1 else "them"
        what = f"{'was' if count == 1 else 'were'} {verdict.suspects[0].problem} while the others waited for {it}"
    else:
        what = f"{'has' if count == 1 else 'have'} not come to {_meeting(worker.frames)}"
    hang = {**(first.hang or {}), "verdict": MISSING, "where": describe(verdict.suspects[0])}
    return replace(first, what=what, signature=f"{HANG}|{MISSING}|{what}", hang=hang)


def noticed_by(worker: FailedWorker, number: int) -> Failure:
    """Return the failure of a rank of a round, which waited for others, as that by which a hang was noticed."""
    return Failure(
        node=worker.node,
        rank=worker.rank,
        local_rank=worker.local_rank or 0,
        time_ns=worker.time_ns or 0,
        kind=HANG,
        exit_code=None,
        signal=None,
        message=worker.cause.title,
        step=worker.step,
        round=number,
    )


def _meeting(frames: Sequence[Frame]) -> str:
    """Return the function in which a rank waited for all others; empty: in no such one."""
    inner = (frame.function.rpartition(".")[2] for frame in reversed(frames) if frame.file.endswith(_C10D))
    return next((name for name in inner if name in MEETINGS), "")
