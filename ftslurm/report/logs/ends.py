"""What a log states about ends: of tasks by srun and launchers, of the job by Slurm, of memory by the kernel (pure)."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.report.logs.lines import GAP, Line, numbers
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.tracebacks import HEADER, Raised, tracebacks
from ftslurm.slurm.nodelist import expand

SHORTEST, LONGEST_BARE, LAST_LINES = 6, 400, 40
_SIGNALS = {
    "Segmentation fault": "SIGSEGV", "Killed": "SIGKILL", "Aborted": "SIGABRT", "Abort": "SIGABRT",
    "Bus error": "SIGBUS", "Terminated": "SIGTERM", "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL", "Interrupt": "SIGINT", "Hangup": "SIGHUP", "Broken pipe": "SIGPIPE",
    "User defined signal 1": "SIGUSR1", "User defined signal 2": "SIGUSR2", "Trace/breakpoint trap": "SIGTRAP",
    "CPU time limit exceeded": "SIGXCPU", "File size limit exceeded": "SIGXFSZ",
}  # fmt: skip
_NAMES = "|".join(map(re.escape, _SIGNALS))
_TASKS = re.compile(
    r"srun: error: (?P<node>[\w.\[\],-]{1,300}): tasks? (?P<tasks>[\d,-]{1,300}): "
    rf"(?:Exited with exit code (?P<code>\d{{1,3}})|(?P<oom>Out Of Memory)|(?P<signal>{_NAMES})(?: \(core dumped\))?)$"
)
_NODE_FAILURE = re.compile(r"srun: error: Node failure on (?P<node>[\w.\[\],-]{1,300})")
_CTRL_C = re.compile(r"srun: sending Ctrl-C to (?:StepId=|job |step )?(?P<id>\d{1,12})")
_CANCELLED = re.compile(
    r"error: \*\*\* (?P<what>JOB|STEP) (?P<id>[\w.+]{1,60}) ON (?P<node>[\w.-]{1,200}) CANCELLED"
    r" AT (?P<at>[\dT:+-]{10,30})(?: DUE [Tt][Oo] (?P<why>[A-Za-z][^*]{2,100}?))? ?\*\*\*"
)
_OOM = re.compile(
    r"Detected \d+ oom[-_]kill event(?:s|\(s\))? in|[Ee]xceeded (?:step|job) memory limit"
    r"|exceeded memory limit \(|Some of (?:your|the step tasks) .{0,40}(?:OOM Killed|the cgroup out-of-memory)"
)
_KERNEL = re.compile(
    r"(?P<cgroup>Memory cgroup out of memory: Kill(?:ed)? process|oom-kill:constraint=CONSTRAINT_MEMCG)"
    r"|(?P<host>Out of memory: Kill(?:ed)? process|oom-kill:constraint=CONSTRAINT_NONE)"
    r"|(?P<xid>NVRM: Xid \([^)]{1,60}\): (?P<number>\d{1,3})\b.{0,200})"
    r"|(?P<mce>mce: \[Hardware Error\].{0,200})|(?P<disk>nvme nvme\d+: .{0,200}(?:timeout|down|failed|reset).{0,80})"
    r"|(?P<io>(?:blk_update_request|Buffer I/O error|EXT4-fs error|XFS \(\S+\): .{0,40}error).{0,200})"
)
_TORCHRUN = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,3})\) local_rank: (?P<local>\d{1,5}) \(pid: (?P<pid>\d{1,10})\)"
)
_AGENT = re.compile(r"\b[EWI]\d{4} [\d:.]{8,20} (?P<agent>\d{1,10}) ")
_STOPPED = re.compile(r"Sending process (?P<pid>\d{1,10}) closing signal")
_LIGHTNING = re.compile(
    r"\[rank: (?P<rank>\d{1,6})\] Child process with PID (?P<pid>\d{1,10}) terminated with code (?P<code>-?\d{1,3})"
)
_DEEPSPEED = re.compile(
    r"\[launch\.py:\d+:\w+\] .{0,6000}?(?:--local_rank=(?P<local>\d{1,5}).{0,6000})?"
    r"exits (?:with return code = (?P<code>-?\d{1,3})|with non-zero)"
)
_SPAWN = re.compile(
    r"ProcessExitedException: process (?P<rank>\d{1,6}) terminated with "
    r"(?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))"
)
_MPIRUN = re.compile(
    r"noticed that process rank (?P<rank>\d{1,6}) with PID \d+ on node (?P<node>[\w.-]+) "
    r"exited on signal (?P<signal>\d+)"
)
_OPEN_MPI = re.compile(r" *Process name: \[\S+?,\d+\],(?P<rank>\d{1,6})\]")
_OPEN_MPI_END = re.compile(r" *Exit code: +(?P<code>\d{1,3})")
_PARENT = re.compile(
    r"subprocess\.CalledProcessError: Command .{1,6000} (?:died with <Signals\.(?P<signal>SIG\w+): \d+>"
    r"|returned non-zero exit status (?P<code>\d{1,3}))"
)
_SAID = re.compile(
    r"(?i)(?:.{0,160}\b(?:exit(?:ed|ing)?|returned|failed)(?: with)?(?: non-zero)?(?: exit)?[ -](?:code|status)"
    r"|State: FAILED \(exit code|make: \*\*\* .{0,160} Error)[ :=]{1,3}(?P<code>[1-9]\d{0,2})\b.{0,40}"
)
_MPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d{1,6}) ")
_MPI_CODE = re.compile(r" *with errorcode (?P<code>-?\d{1,5})")
_HYDRA = re.compile(r"= +RANK (?P<rank>\d{1,6}) PID \d+ RUNNING AT (?P<node>[\w.-]+)")
_HYDRA_END = re.compile(r"= +KILLED BY SIGNAL: (?P<signal>\d+)|= +EXIT (?:STATUS|CODE): (?P<code>\d+)")
_SHELL = re.compile(
    rf"(?:\S{{1,300}}: line \d+: +)?(?P<pid>\d{{1,10}}) +(?P<signal>{_NAMES})(?: +\(core dumped\))? +\S.{{0,4000}}$"
)
_BARE = re.compile(rf"(?:\S{{1,300}}: line \d+: )?(?P<signal>Killed|{_NAMES})(?: +\(core dumped\))?$")
_ROW = re.compile(
    r"^\s+time +: .{0,40}\n\s+host +: (?P<host>.{0,255})\n"
    r"\s+rank +: (?P<rank>\d{1,6}) \(local_rank: (?P<local>\d{1,6})\)\n"
    r"\s+exitcode +: (?P<code>-?\d{1,5}) \(pid: (?P<pid>\d{1,10})\).*\n"
    r"(?:\s+error_file *:.*\n)?(?:  traceback *: (?P<text>.*(?:\n(?!\[\d+\]:|[-=]{10}|Root Cause).*)*))?",
    re.MULTILINE,
)
_TABLE_BEGIN = re.compile(r"ChildFailedError:\s*$")
_WHY = (
    ("TIME LIMIT", "TIMEOUT"),
    ("PREEMPTION", "PREEMPTED"),
    ("NODE FAILURE", "NODE_FAIL"),
    ("JOB REQUEUE", "REQUEUED"),
    ("OUT OF MEMORY", "OUT_OF_MEMORY"),
    ("DEADLINE", "DEADLINE"),
)


@dataclass(frozen=True)
class End:
    """The end of a process, as stated in a log.

    Attributes:
        number: of the line.
        by: what states it: "srun", "torchrun", "table", "deepspeed", "lightning", "spawn", "mpirun", "parent",
            "shell", "script".
        text: the line.
        rank, local, node, pid: of the process, as far as stated; ``tasks``: Slurm's.
        code: exit code.
        signal: its name.
        oom: whether Slurm states that memory ran out.
        stopped: whether a launcher had stopped it.
        agent: torchrun's own pid.
        raised: its exception in torchrun's table.
        root: whether torchrun observed it first.
    """

    number: int
    by: str
    text: str
    rank: int | None = None
    tasks: tuple[int, ...] = ()
    local: int | None = None
    node: str | None = None
    pid: int | None = None
    code: int | None = None
    signal: str | None = None
    oom: bool = False
    stopped: bool = False
    agent: str | None = None
    raised: Raised | None = None
    root: bool = False


@dataclass(frozen=True)
class JobEnd:
    """Slurm's statement on a job or step; ``state``: as Slurm's states, or "REQUEUED"."""

    number: int
    text: str
    state: str
    node: str | None
    job_id: str | None
    whole: bool
    at: str | None = None


@dataclass(frozen=True)
class Kernel:
    """A line of the kernel; ``kind``: "cgroup" and "host" are OOM kills."""

    number: int
    text: str
    kind: str


@dataclass(frozen=True)
class Ends:
    """All statements on ends in a log, in order."""

    processes: tuple[End, ...] = ()
    job: tuple[JobEnd, ...] = ()
    kernel: tuple[Kernel, ...] = ()
    oom: tuple[int, ...] = ()


def ends_of(lines: Sequence[Line]) -> Ends:
    """Return the statements on ends in these lines."""
    reader = _Reader(lines)
    for i, line in enumerate(lines):
        if len(line.text) >= SHORTEST and line.text != GAP and not reader.by_slurm(line):
            reader.by_others(i, line)
    known = [replace(end, stopped=True) if end.pid in reader.stopped else end for end in reader.processes]
    known += _said(lines)
    return Ends(tuple(known), tuple(reader.job), tuple(reader.kernel), tuple(reader.oom))


class _Reader:
    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.processes: list[End] = []
        self.job: list[JobEnd] = []
        self.kernel: list[Kernel] = []
        self.oom: list[int] = []
        self.stopped: set[int] = set()  # pids that torchrun stopped
        self.hydra: tuple[int, str | None] | None = None
        self.step_ends = False  # srun has begun to end the other tasks

    def by_slurm(self, line: Line) -> bool:
        """Read a line of Slurm; return whether it was one."""
        text = line.text
        if not ("srun: " in text or "error: ***" in text or "oom" in text or "xceeded" in text):
            return False
        self.step_ends = self.step_ends or "Terminating StepId" in text or "Job step aborted" in text
        if found := _TASKS.search(text):
            # Where srun ends the other tasks, its line on that may be missing.
            failed = any(end.by == "srun" and not end.stopped for end in self.processes)
            terminated = failed and found["signal"] == "Terminated"
            self.processes.append(_of_srun(line, found, self.step_ends or terminated))
        elif ended := _job_end(line):
            self.job.append(ended)
            self.step_ends = True
        elif _OOM.search(text):
            self.oom.append(line.number)
        else:
            return False
        return True

    def by_others(self, i: int, line: Line) -> None:
        """Read a line of a launcher, a shell or the kernel."""
        text = line.text
        if "closing signal" in text and (found := _STOPPED.search(text)):
            self.stopped.add(int(found["pid"]))
        elif _TABLE_BEGIN.search(text):
            self.processes += _table(self.lines, i)
        elif _may_be_kernel(text) and (found := _KERNEL.search(text)):
            kind = next(name for name in ("cgroup", "host", "xid", "mce", "disk", "io") if found[name])
            self.kernel.append(Kernel(line.number, found[0], kind))
        elif text.startswith(("=", " ", "MPI_ABORT", "with errorcode")):
            self.by_mpi(line)
        elif end := _by_launcher(line) or _by_shell(line):
            self.processes.append(end)

    def by_mpi(self, line: Line) -> None:
        """Read a line of the final box of Intel MPI, MPICH or Open MPI."""
        if found := _HYDRA.match(line.text):
            self.hydra = int(found["rank"]), found["node"]
        elif found := _OPEN_MPI.match(line.text) or _MPI_ABORT.match(line.text):
            self.hydra = int(found["rank"]), None
        elif self.hydra is not None and (found := _end_of_mpi(line.text)):
            code = f"-{found['signal']}" if found.groupdict().get("signal") else found["code"]
            self.processes.append(_end(line, "mpirun", code, rank=self.hydra[0], node=self.hydra[1]))
            self.hydra = None


def _end_of_mpi(text: str) -> re.Match[str] | None:
    return _HYDRA_END.match(text) or _OPEN_MPI_END.match(text) or _MPI_CODE.match(text)


def _said(lines: Sequence[Line]) -> list[End]:
    """Return what a script prints about an exit code as the last of all, such as seff's summary."""
    for line in reversed(lines[-LAST_LINES:]):
        found = _SAID.fullmatch(line.text.strip()) if "srun: " not in line.text else None
        if found is not None and line.rank is None:
            return [End(line.number, "script", line.text, code=int(found["code"]))]
        if not is_aftermath(line.text):
            break
    return []


def _by_launcher(line: Line) -> End | None:
    text = line.text
    if "xitcode: " in text and (found := _TORCHRUN.search(text)):
        agent = _AGENT.search(text)
        end = _end(line, "torchrun", found["code"], local=int(found["local"]), pid=int(found["pid"]))
        return replace(end, agent=agent["agent"]) if agent else end
    if "Child process with PID" in text and (found := _LIGHTNING.search(text)):
        return _end(line, "lightning", found["code"], rank=int(found["rank"]), pid=int(found["pid"]))
    if "launch.py:" in text and (found := _DEEPSPEED.search(text)):
        local = int(found["local"]) if found["local"] else None
        return _end(line, "deepspeed", found["code"] or "1", local=local, node=line.node)
    if "ProcessExitedException" in text and (found := _SPAWN.search(text)):
        end = End(line.number, "spawn", text, rank=int(found["rank"]), signal=found["signal"])
        return replace(end, code=int(found["code"])) if found["code"] else end
    if "CalledProcessError: " in text and (found := _PARENT.match(text)):
        end = End(line.number, "parent", text[:300], signal=found["signal"])
        return replace(end, code=int(found["code"])) if found["code"] else end
    if "noticed that process rank" in text and (found := _MPIRUN.search(text)):
        return _end(line, "mpirun", f"-{found['signal']}", rank=int(found["rank"]), node=found["node"])
    return None


def _by_shell(line: Line) -> End | None:
    text = line.text.strip()
    found = _SHELL.match(text) if text[:1].isdigit() or ": line " in text else None
    if found is not None:
        return End(line.number, "shell", text, rank=line.rank, signal=_SIGNALS[found["signal"]], pid=int(found["pid"]))
    found = _BARE.match(text) if len(text) < LONGEST_BARE else None
    return End(line.number, "shell", text, rank=line.rank, signal=_SIGNALS[found["signal"]]) if found else None


def _may_be_kernel(text: str) -> bool:
    return (
        ("ill" in text and "rocess" in text) or "NVRM" in text or "kernel" in text or "mce:" in text or "oom-" in text
    )


def _end(line: Line, by: str, code: str, **more: object) -> End:
    end = End(line.number, by, line.text, **more)  # type: ignore[arg-type]
    return with_code(end, int(code))


def with_code(end: End, code: int) -> End:
    """Return the end with an exit code, or for a negative one with the signal."""
    if code >= 0:
        return replace(end, code=code)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return replace(end, signal=name)


def _of_srun(line: Line, found: re.Match[str], aborted: bool) -> End:
    end = End(line.number, "srun", line.text, node=found["node"], tasks=tuple(numbers(found["tasks"])))
    if found["oom"]:
        return replace(end, signal="SIGKILL", oom=True)
    if found["code"]:
        return replace(end, code=int(found["code"]))
    name = _SIGNALS[found["signal"]]
    # After srun began to end the step, it ends the other tasks by these signals.
    return replace(end, signal=name, stopped=aborted and name in ("SIGTERM", "SIGKILL", "SIGINT"))


def _job_end(line: Line) -> JobEnd | None:
    found = _NODE_FAILURE.search(line.text)
    if found is not None:
        return JobEnd(line.number, line.text, "NODE_FAIL", found["node"], None, whole=True)
    if "Ctrl-C" in line.text and (found := _CTRL_C.search(line.text)) is not None:
        return JobEnd(line.number, line.text, "CANCELLED", None, found["id"], whole=True)
    found = _CANCELLED.search(line.text)
    if found is None:
        return None
    why = (found["why"] or "").upper()
    state = next((state for text, state in _WHY if text in why), "CANCELLED")
    job = found["id"].partition(".")[0]
    node = found["node"] if state != "NODE_FAIL" else None
    return JobEnd(line.number, line.text, state, node, job, found["what"] == "JOB" or bool(why), found["at"])


def _table(lines: Sequence[Line], begin: int) -> list[End]:
    """Return the rows of torchrun's final table."""
    own = [line for line in lines[begin + 1 : begin + 4096] if line.key == lines[begin].key]
    borders = [i for i, line in enumerate(own) if line.text.startswith("=====")]
    # Two borders; a table may be cut off.
    own = own[: borders[1] + 1] if len(borders) > 1 else own
    text = "\n".join(line.text for line in own)
    root = text.find("Root Cause")
    found = []
    for row in _ROW.finditer(text):
        end = _end(lines[begin], "table", row["code"], rank=int(row["rank"]), local=int(row["local"]),
                   pid=int(row["pid"]), node=row["host"].strip() or None)  # fmt: skip
        # A SIGKILL by torchrun follows its SIGTERM, which it prints.
        stopped = not 0 <= root < row.start() and end.signal in ("SIGTERM", "SIGINT")
        raised = _raised(row["text"] or "", lines[begin])
        found.append(replace(end, stopped=stopped, root=0 <= root < row.start(), raised=raised))
    return sorted(found, key=lambda end: not end.root)


def _raised(text: str, line: Line) -> Raised | None:
    if HEADER not in text:
        return None
    texts = text.split("\n")
    own = [line._replace(text=each.removeprefix("  ") if i else each) for i, each in enumerate(texts)]
    found = tracebacks(own)
    return replace(found[-1], begin=line.number, end=line.number) if found else None


def nodes_of(text: str | None) -> list[str]:
    """Return the nodes in Slurm's form of a list."""
    if not text:
        return []
    try:
        return list(expand(text))[:64]
    except ValueError:
        return [text]


__all__ = ["End", "Ends", "JobEnd", "Kernel", "ends_of", "nodes_of", "with_code"]
