"""The records of failures that a log's lines are evidence of, as a rank's error record would be (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ftslurm.dataclasses import replace
from ftslurm.failures.catalogue.memory import BY_BATCH_SYSTEM, BY_SLURM
from ftslurm.failures.causes import classify
from ftslurm.failures.exception_line import exception_in
from ftslurm.failures.nccl_timeout import timeout_in
from ftslurm.failures.own_code import is_library
from ftslurm.failures.predicates import lost_child
from ftslurm.failures.reason import CUT, by_distributed, links, reason
from ftslurm.failures.traceback_text import open_frames
from ftslurm.pattern import pattern
from ftslurm.records.error import IN_LOG, ExceptionRecord, HostResources, OomKills
from ftslurm.report.facts import RankError
from ftslurm.report.failed_worker import failed_worker_of
from ftslurm.report.judged_worker import evidence_of
from ftslurm.report.logs.attempt_log import AttemptLog
from ftslurm.report.logs.end import End, nodes_of
from ftslurm.report.logs.evidence import Evidence
from ftslurm.report.logs.lines import process
from ftslurm.report.logs.tracebacks import Crash, Raised

UNKNOWN = -1
"""The first of the numbers of unknown ranks: each has its own negative one."""
XIDS = 4
LOCAL = ("localhost", "localhost.localdomain")
_LSF_HOST = pattern(r"Job was executed on host\(s\) <(?:\d{1,6}\*)?(?P<host>[\w.-]{1,80})>")
_FURTHER_HOST = pattern(r"\s+<")
_BY_SCHEDULER = pattern(f"{BY_SLURM}|{BY_BATCH_SYSTEM}")
_KILLED_PID = pattern(r"Killed? process (\d{1,9})\b")
# Of DeepSpeed's launcher.
_SPAWNED = pattern(r"\bprocess (\d{1,9}) spawned with command: .{0,400}--local_rank=(\d{1,5})\b")
_THROWN = pattern(r"(?:what\(\): +|terminated with exception: )((?:CUDA|HIP) error: [^\n]{1,300})")  # before an abort
# Of Ray, on the task that it killed: another process raises that.
_BY_RAY = pattern(
    r"\(IP: (?P<ip>[\d.]{7,15}), ID: \w{1,80}\) where the (?:task|lease) \([^)]{0,300}?\bpid=(?P<pid>\d{1,9})\b"
)
DEAD_NODE = pattern(
    r"node with node id: \w{1,80} and address: (?P<node>[\w.:-]{1,80}) .{0,160}has been marked dead because"
    r" (?P<why>[^.\n]{1,160})"
)
"""Of Ray."""
_OF_DEVICE = pattern(r"CUDA|cuda|cuBLAS|cuDNN|NVML")


def error_of(log: AttemptLog, thing: Evidence, rank: int, node: str | None = None) -> RankError:
    """Return the record of a rank's failure by that evidence; `node` where the end of a process states it."""
    if isinstance(thing, Raised):
        error = record(rank, "exception", thing.headline, thing.begin)
        exception = _with_xids(log, _with_cut_off(reason(thing.exception)))
        error = replace(error, exception=exception, traceback=thing.traceback)
        if exception.type in ("ModuleNotFoundError", "ImportError") or "open shared object" in exception.message:
            error = replace(error, quotes=tuple(log.environment(thing.begin)))
    elif isinstance(thing, Crash):
        error = replace(record(rank, "signal", thing.signal, thing.begin), signal=thing.signal, stacks=thing.stacks)
    else:
        error = record(rank, thing.kind, thing.message, thing.number)
        error = replace(error, exit_code=thing.code, signal=thing.signal)
        named = exception_in(thing.message) if thing.kind == "exit" and thing.code == 1 else None
        error = error if named is None else replace(error, kind="exception", exception=named)
        thrown = _THROWN.search(thing.message) if thing.kind == "signal" else None
        if thrown is not None:
            error = replace(error, exception=_with_xids(log, ExceptionRecord("RuntimeError", "", thrown[1])))
        if "of the batch script)" in thing.message:
            error = replace(error, quotes=tuple(log.environment(thing.number)))
    node = (node if node not in LOCAL else None) or log.node_of(thing.line)
    killed = _BY_RAY.search(error.exception.message) if error.exception is not None else None
    if killed is not None:
        return replace(error, node=process(killed["pid"], killed["ip"]))
    if error.exception is not None and any("its node has died" in each.message for each in links(error.exception)):
        # Another process reports that, too.
        node = next((found["node"] for line in log.lines if (found := DEAD_NODE.search(line.text))), node)
    return replace(error, node=node, local_rank=thing.line.local)


def _with_xids(log: AttemptLog, exception: ExceptionRecord) -> ExceptionRecord:
    """Return an error of a device with the kernel's lines on it: they decide what the driver's error only guesses."""
    if not _OF_DEVICE.search(exception.message):
        return exception
    xids = tuple(each.text for each in log.ends.kernel if each.kind == "xid")[:XIDS]
    return replace(exception, notes=(*exception.notes, *xids))


def _with_cut_off(exception: ExceptionRecord) -> ExceptionRecord:
    """Return an exception whose message ends within another process's traceback, with the frames of that."""
    lines = exception.message.split("\n")
    first, frames = open_frames(lines) if len(lines) > 1 else (0, ())
    if not frames:
        return exception
    introduction = " ".join(line.strip() for line in lines[:first] if line.strip()).strip("- :")
    return replace(exception, message=f"{introduction} ({CUT})".strip(), frames=frames)


def of_end(end: End, rank: int) -> RankError:
    """Return the record of an end without a reason."""
    if end.signal is not None:
        error = replace(record(rank, "signal", end.signal, end.number), signal=end.signal)
    elif end.code is None and end.by in ("pod", "condor", "abort"):
        error = record(rank, "exit", end.text, end.number)
    elif end.code is None:
        error = record(rank, "exit", "failed; its exit code is not in the log", end.number)
    else:
        error = replace(record(rank, "exit", f"exit code {end.code}", end.number), exit_code=end.code)
    return with_end(error, end)


def with_end(error: RankError, end: End) -> RankError:
    """Return the record with what an end states."""
    code = end.code if end.code is not None and error.kind != "signal" else error.exit_code
    sole = nodes_of(end.node)
    # Each node's torchrun may call it so.
    node = sole[0] if len(sole) == 1 and sole[0] not in LOCAL else error.node
    local = end.local if end.local is not None else error.local_rank
    pid = end.pid if end.pid is not None else error.pid
    known, shown = error.exception, end.raised
    if known is not None and not known.frames and shown is not None and shown.exception.message == known.message:
        error = replace(error, exception=shown.exception, traceback=shown.traceback)
    return with_quote(replace(error, exit_code=code, node=node, host=node, local_rank=local, pid=pid), end)


def with_quote(error: RankError, end: End | None) -> RankError:
    """Return the record with the line that states the end."""
    if end is None or end.by in ("table", "torchrun", "abort") or len(error.quotes) > 1:
        return error
    return replace(error, quotes=(*error.quotes, end.text.strip()[:300]))


def with_first(error: RankError, rank: int) -> RankError:
    """Return the record of an unknown rank with the rank whose end was noticed first."""
    text = f"the end of rank {rank} was noticed first; which rank has this traceback is not known"
    return replace(error, quotes=(*error.quotes, text))


def oom_error(log: AttemptLog) -> RankError:
    """Return the record of a rank that was killed for memory: the only one that srun states to be killed, or any."""
    number = min([*log.ends.oom, *(end.number for end in log.ends.processes if end.oom)])
    text = next((line.text for line in log.lines if line.number == number), "")
    killed = [end for end in log.ends.processes if end.by == "srun" and end.signal == "SIGKILL"]
    ranks = log.ranks_of(killed[0]) if len(killed) == 1 else []
    error = record(ranks[0] if len(ranks) == 1 else UNKNOWN, "signal", "SIGKILL", number)
    error = replace(error, signal="SIGKILL", quotes=(text.strip()[:300],))
    error = with_end(error, killed[0]) if len(killed) == 1 else error
    if _BY_SCHEDULER.search(text) is None:
        return error
    return replace(error, message=text.strip()[:300], node=error.node or _sole_host(log))


def _sole_host(log: AttemptLog) -> str | None:
    """Return the only host on which LSF states that the job was executed; None: there are several, or none is known."""
    for line, below in pairwise(log.lines):
        if (found := _LSF_HOST.match(line.text)) is not None:
            return None if _FURTHER_HOST.match(below.text) else found["host"]
    return None


def with_caller(error: RankError, callers: Sequence[Raised]) -> RankError:
    """Return the failure of a library's process with the call of the user's own code that had started it, if known."""
    raised = error.exception
    if raised is None or not raised.frames or len(callers) != 1 or callers[0].begin < error.order:
        return error
    own = [frame for frame in callers[0].exception.frames if not is_library(frame.file)]
    if not own or any(not is_library(frame.file) for frame in raised.frames):
        return error
    return replace(error, exception=replace(raised, frames=(*own, *raised.frames)))


def with_memory(log: AttemptLog, error: RankError) -> RankError:
    """Return the error with the kernel's statement on memory, or that of what ended the job for it."""
    ended = next((line.text.strip()[:300] for line in log.lines if line.number in log.ends.oom), "")
    if error.signal == "SIGKILL" and _BY_SCHEDULER.search(ended) is not None:
        return replace(error, message=ended, quotes=tuple(dict.fromkeys((*error.quotes, ended))))
    kills = [each for each in log.ends.kernel if each.kind in ("cgroup", "host")]
    killed = error.signal == "SIGKILL" or error.exit_code == 137
    killed = killed or (error.exception is not None and lost_child(error.exception))
    if not kills or not killed or error.host_resources is not None:
        return error
    at_limit = any(each.kind == "cgroup" for each in kills)
    total = None if at_limit else 100
    oom = OomKills(len(kills), len(kills), source=IN_LOG, at_limit=at_limit)
    resources = HostResources(oom=oom, memory_total=total, least_available=None if at_limit else 0)
    error = replace(error, host_resources=resources, quotes=(*error.quotes, kills[-1].text))
    killed_pid = _KILLED_PID.search(kills[-1].text) if error.rank < 0 and error.local_rank is None else None
    if killed_pid is None:
        return error
    spawned = (_SPAWNED.search(line.text) for line in log.lines)
    return next(
        (replace(error, local_rank=int(each[2])) for each in spawned if each and each[1] == killed_pid[1]), error
    )


def is_cascade(error: RankError) -> bool:
    """Return whether a failure's cause is a consequence of another rank's end."""
    worker = failed_worker_of(error.rank, None, error, None, "")
    # Of an abort, its last line is the evidence.
    return classify(evidence_of(worker, error.message if error.kind == "signal" else "")).cascade


def follows(log: AttemptLog, thing: Evidence) -> bool:
    """Return whether the cause that evidence gives is a consequence of another rank's end."""
    return is_cascade(error_of(log, thing, 0))


def has_lost_process(error: RankError) -> bool:
    """Return whether a failure only reports that a process of Ray's died."""
    worker = failed_worker_of(error.rank, None, error, None, "")
    return classify(evidence_of(worker, "")).name == "ray-process"


def is_of_distributed(error: RankError) -> bool:
    """Return whether torch.distributed raised a failure, as where a peer's node is lost."""
    raised = error.exception
    if raised is None:
        return is_cascade(error)
    inner = raised.frames[-1].file if raised.frames else ""
    return by_distributed(raised.type, raised.module, raised.message, inner)


def has_waited(error: RankError) -> bool:
    """Return whether a rank's time for a collective was over."""
    if timeout_in(error.message) is not None:
        return True
    worker = failed_worker_of(error.rank, None, error, None, "")
    return classify(evidence_of(worker, "")).name in ("collective-timeout", "nccl-timeout", "late-rank")


def record(rank: int, kind: str, message: str, order: int) -> RankError:
    """Return a record with no more than the kind of an end, its description and the number of its line."""
    return RankError(
        rank=rank,
        node=None,
        host=None,
        local_rank=None,
        time_ns=None,
        kind=kind,
        exit_code=None,
        signal=None,
        step=None,
        pid=None,
        argv=(),
        message=message,
        traceback=None,
        exception=None,
        stacks=None,
        whole=False,
        order=order,
    )
