"""Lines by which runtimes, drivers and launchers themselves state a failure, without a level or a traceback (pure).

The order is that of their value: what is first says more of the reason. Each is printed only when something fails;
that a program survives it is possible, so that it counts only where nothing better is known.
"""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.pattern import pattern

LIMIT = 4000
TEXT_LIMIT = 600


@dataclass(frozen=True)
class Stated:
    """A failure that a line states.

    Attributes:
        value: the smaller, the more it says of the reason.
        text: what it states, in one line.
        meaning: what that means, where the line is no reason by itself; empty: it is one.
        node, rank: that it names; empty, None: none.
    """

    value: int
    text: str
    meaning: str = ""
    node: str = ""
    rank: int | None = None


_NCCL = r"(?:(?P<node>[A-Za-z<][\w.<>-]{0,80}):\d+:\d+ \[\d+\] (?:\S{1,80} )?)?(?P<text>NCCL WARN (?:{what}).*)"
_FATAL_WARN = (
    r".{0,80}Got completion .{0,80}status|.{0,60}Call to \w+ .{0,120}failed|.{0,60}onnection closed by remote"
    r"|Cuda failure|.{0,60}no socket interface|.{0,40}[Mm]ismatch|.{0,40}async event"
    r"|.{0,40}Connect to \S+ failed|.{0,40}has already checked in|.{0,60}Failed to execute operation"
    r"|.{0,40}[Ii]nvalid (?:usage|argument)|.{0,40}[Mm]essage truncated"
)
# What NCCL warns of and goes on.
_BENIGN_WARN = (
    r"(?i:.{0,60}plugin|.{0,60}ignored|.{0,60}deprecated|MSCCL|Missing|.{0,40}iommu|.{0,40}hang"
    r"|.{0,80}fall(?:ing)? ?back"
    r"|.{0,60}could not find|.{0,60}unset|.{0,60}disabl|.{0,60}libibverbs|.{0,60}affinity|.{0,60}not supported"
    r"|.{0,40}NUMA)"
)
_ORDERED = tuple(
    pattern(form)
    for form in (
        r"(?:.{0,300}\W)?(?P<text>Task was killed due to the node running low on memory.*)",
        r" *(?:Last State: .{0,40})?Reason: +(?P<text>OOMKilled) *",
        r"(?P<text>mpi(?:run|exec) was unable to (?:find|launch|start) .*)",
        r"(?:.{0,160}\W)?(?P<text>the actor's node was preempted.*)",
        r"(?:.{0,160}\W)?(?P<text>The actor (?:died|is dead) because its node has died.*)",
        r".{0,160}(?P<text>A worker died or was killed while executing a task by an unexpected system error)"
        r"(?:.{0,600}Worker IP address: (?P<node>[\d.]{7,15}))?.*",
        r".{0,300}\b(?P<text>Pod: (?P<node>[\w.-]{1,120}) exited with code [1-9]\d{0,2})\b.*",
        r"(?:.{0,80}\W)?(?P<text>NVRM: Xid \([^)]{1,60}\): \d{1,3}\b.*)",
        r"(?:.{0,80}\W)?(?P<text>NVRM: .{0,80}(?:fallen off the bus|RmInitAdapter failed!).*)",
        r"(?P<text>(?:ERROR: )?Unexpected bus error encountered in worker\..*)",
        r"(?:\S{0,300}/)?(?P<text>[^\s/]{1,100}\.cu\w{0,4}:\d+: .{1,300}Assertion `.{1,300})",
        r".{0,300}?(?P<text>Detected mismatch between collectives on ranks?\. Rank (?P<rank>\d+) .*)",
        r"(?P<text>Parameter indices which did not receive grad for rank (?P<rank>\d+): .*)",
        r".{0,120}\] ?(?P<text>Check failed: .{24,})",
        r"Exception in device=TPU:(?P<rank>\d+): (?P<text>.*)",
        r"(?P<text>CommandNotFoundError: Your shell has not been properly configured.*)",
        r".{0,120}\b(?P<text>Got fatal signal from worker processes.*)",
        r".{0,300}?(?P<text>Horovod has been shut ?down.*)",
        r".{0,60}\[c10d\] (?P<text>The client socket has (?:timed out|failed to connect to any).*)",
        r".{0,60}\[c10d\] (?P<text>The server socket has failed to listen.*)",
        r"(?P<text>OMP: Error #\d+: .*)",
        r"\s{0,20}(?P<text>size mismatch for \S{1,300}: copying a param with shape .*)",
        r"(?:.{0,40}\W)?(?P<text>Loss is nan, stopping training.*)",
        r"(?P<text>(?:[A-Z]\w{2,60})(?:Error|Exception)) {3,80}Traceback \(most recent call last\)",
        r"\s{0,20}(?P<text>\w{3,60} execute failed, reason=\[[^\]]{1,100}\]).*",
        r".{0,80}\b(?P<text>Error pod (?P<node>[\w.-]{1,80}) container \S{1,60} exitCode: \d{1,3}).*",
        r"(?P<text>E[A-Z]\d{4}: (?!Inner Error!).{0,80}(?:[Rr]eason|[Ee]rror|fail|[Tt]ime).*)",
        r".{0,120}\b(?P<text>[Rr]ank (?P<rank>\d{1,6}) successfully reached monitoredBarrier, but .*)",
        _NCCL.replace("{what}", _FATAL_WARN),
        r".{0,80}?NCCL WARN (?P<text>Duplicate GPU detected : rank (?P<rank>\d+) .*)",
        r"(?:.{0,600}\W)?(?P<text>Task /job:\S{1,100}/task:(?P<rank>\d+) heartbeat timeout\.? .{0,100}?(?=\.|$))",
        r".{0,600}(?P<text>tasks are unhealthy \([^)]{1,80}\): /job:\S{1,100}/task:(?P<rank>\d{1,9})).*",
        r".{0,60}\[PG .{0,60}?Rank (?P<rank>\d+)\] .{0,60}?(?P<text>(?:ProcessGroupNCCL's )?watchdog got stuck for"
        r" \d+ seconds).*",
        r".{0,60}\[PG .{0,60}?Rank (?P<rank>\d+)\] (?P<text>Heartbeat monitor timed out!).*",
        r".{0,200}?\W(?P<text>\S{1,120} \[missing ranks: ?(?P<rank>\d+)[\d, ]*\]).*",
        r"(?:.{0,80}\W)?(?P<text>HTTP Error (?:429|50\d) thrown while requesting .*)",
        r" *\"message\": \"(?P<text>\w{1,80}(?:Error|Exception|Exit)\b.{0,400})",
        r"(?:.{0,40} )?(?:(?P<node>[A-Za-z<][\w.<>-]{0,80}):\d+:\d+ \[\d+\] (?:\S{1,80} )?)(?P<text>NCCL WARN (?!"
        rf"{_BENIGN_WARN}).*)",
        r"(?P<text>GPU [\dA-Fa-f:.]{7,20}: Detected Critical Xid Error.*)",
        r"(?P<text>Primary job +terminated normally, but \d+ process.{0,80})",
        r"(?P<text>(?:mpiexec|mpirun) noticed that process rank (?P<rank>\d+) with PID .{0,80})",
        r"(?P<text>==== backtrace \(tid: *\d+\) ====)",
        r"(?P<text>Child process \d+ \(local_rank \d+\) FAILED \(exitcode -?\d+\).*)",
        r".{0,20}(?P<text>torchelastic\.worker\.status\.FAILED).{0,200}\"global_rank\": (?P<rank>\d+)"
        r"(?:.{0,200}\"hostname\": \"(?P<node>[\w.-]{1,80})\")?.*",
        r"(?:\S{1,200}\.)?(?P<text>ChildFailedError):? *$",
        r"(?P<text>[A-Z]\w{2,60}(?:Error|Exception)\([\"'].{1,400}[\"']\)) *$",
        r"(?P<text>Error executing job with overrides: .*)",
        r".{0,80}\[c10d\] (?P<text>(?:recvValue|recvVector|recvString|sendBytes|sendString) failed on SocketImpl\(.*)",
        r".{0,200}(?P<text>Sending process \d+ closing signal SIG\w+)",
        r".{0,60}\[launch\.py:\d+:(?P<text>sigkill_handler\] Killing subprocess \d+)",
    )
)
_STUCK = "NCCL's watchdog got stuck on this rank: a CUDA call or the GIL may have been blocked"
_MEANING = {
    **dict.fromkeys(("recv", "send"), "the store's host closed its connection to it: see rank 0's node"),
    "Heartbeat monitor": _STUCK,
    "ProcessGroupNCCL's watchdog": _STUCK,
    "Sending process": "torchrun stopped its ranks; the failure or the signal before is not in the log",
    "torchelastic.worker": "torchrun's events say that it failed",
    "ChildFailedError": "torchrun says that a rank failed; its table is cut off",
    "OOMKilled": "a container was killed at its memory limit (OOMKilled)",
    "Primary job": "a process ended with another exit code than 0, so that mpirun ended the others",
    **dict.fromkeys(("mpirun noticed", "mpiexec noticed"), "its launcher noticed its end, without a reason"),
    "==== backtrace": "a crash in native code, of which UCX printed the backtrace",
    "Error executing job with overrides": "Hydra's job failed",
    "sigkill_handler": "DeepSpeed's launcher killed its processes because one of them had failed",
}
# Most lines are none of these: one search for each.
_MAYBE = pattern(
    r"Xid|bus error enc|Assertion `|mismatch betw|receive grad|\[c10d\]|^E[A-Z]\d{4}: |NCCL WARN|HTTP Err|\"message\""
    r"|Error exec|sigkill_h|actor|A worker died|NVRM|Check failed|device=TPU|CommandNotF|Got fatal|Horovod has"
    r"|Primary job|noticed that|==== back|size mismatch|Loss is nan|Child process|worker\.status|ChildFailed"
    r"|running low on mem|OOMKilled|was unable to|^OMP: Err|heartbeat t|are unhealthy|got stuck|Heartbeat mon"
    r"|missing ranks"
    r"|\[c10d\]|execute failed|Error pod|Error {3}|Exception {3}|closing signal"
    r"|Error\(|Pod: |monitoredB"
    r"|Exception\("
)


def stated_in(line: str) -> Stated | None:
    """Return the failure that a line states; None: none."""
    line = line[:LIMIT]
    if _MAYBE.search(line) is None:
        return None
    for value, form in enumerate(_ORDERED):
        found = form.match(line)
        if found is not None:
            names = found.groupdict()
            rank = int(names["rank"]) if names.get("rank") else None
            text = found["text"].strip(' ",')[:TEXT_LIMIT]
            meaning = next((meaning for begin, meaning in _MEANING.items() if text.startswith(begin)), "")
            return Stated(value, text, meaning, names.get("node") or "", rank)
    return None
