"""What a log states about ends: of tasks by srun and launchers, of the job by Slurm, of memory by the kernel (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.dataclasses import replace
from ftslurm.pattern import pattern
from ftslurm.report.logs.condor import condor_end
from ftslurm.report.logs.end import SIGNALS, End, Ends, JobEnd, Kernel, of_code, signal_name, with_code
from ftslurm.report.logs.lines import GAP, Line, numbers
from ftslurm.report.logs.mpi_ends import MpiBoxes, by_mpi
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.pods import KILLED, evicted, pod_end
from ftslurm.report.logs.table import OF_TABLE, table

SHORTEST, LONGEST_BARE, SUMMARY_LINES, LONGEST_TABLE = 6, 400, 40, 2000
_NAMES = "|".join(map(re.escape, SIGNALS))
_TASKS = pattern(
    r"srun: error: (?P<node>[\w.\[\],-]{1,300}): tasks? (?P<tasks>[\d,-]{1,300}): "
    rf"(?:Exited with exit code (?P<code>\d{{1,3}})|(?P<oom>Out Of Memory)|(?P<signal>{_NAMES})(?: \(core dumped\))?)$"
)
_NODE_FAILURE = pattern(r"srun: error: Node failure on (?P<node>[\w.\[\],-]{1,300})")
_CTRL_C = pattern(r"srun: sending Ctrl-C to (?:StepId=|job |step )?(?P<id>\d{1,12})")
_CANCELLED = pattern(
    r"error: \*\*\* (?P<what>JOB|STEP) (?P<id>[\w.+]{1,60}) ON (?P<node>[\w.-]{1,200}) CANCELLED"
    r" AT (?P<at>[\dT:+-]{10,30})(?: DUE [Tt][Oo] (?P<why>[A-Za-z][^*]{2,100}?))? ?\*\*\*"
)
_OOM = pattern(
    r"Detected \d+ oom[-_]kill event(?:s|\(s\))? in|[Ee]xceeded (?:step|job) memory limit"
    r"|exceeded memory limit \(|^State: OUT_OF_MEMORY\b"
    r"|Some of (?:your|the step tasks) .{0,40}(?:OOM Killed|the cgroup out-of-memory)"
)
_KERNEL = pattern(
    r"(?P<cgroup>Memory cgroup out of memory: Kill(?:ed)? process|oom-kill:constraint=CONSTRAINT_MEMCG)"
    r"|(?P<host>Out of memory: Kill(?:ed)? process|oom-kill:constraint=CONSTRAINT_NONE)"
    r"|(?P<xid>NVRM: Xid \([^)]{1,60}\): (?P<number>\d{1,3})\b.{0,200})"
    r"|(?P<mce>mce: \[Hardware Error\].{0,200})|(?P<disk>nvme nvme\d+: .{0,200}(?:timeout|down|failed|reset).{0,80})"
    r"|(?P<io>(?:blk_update_request|Buffer I/O error|EXT4-fs error|XFS \(\S+\): .{0,40}error).{0,200})"
)
_TORCHRUN = pattern(
    r"failed \(exitcode: (?P<code>-?\d{1,10})\) local_rank: (?P<local>\d{1,5}) \(pid: (?P<pid>\d{1,10})\)"
)
_AGENT = pattern(r"\b[EWI]\d{4} [\d:.]{8,20} (?P<agent>\d{1,10}) ")
_STOPPED = pattern(r"Sending process (?P<pid>\d{1,10}) closing signal")
_LIGHTNING = pattern(
    r"\[rank: (?P<rank>\d{1,6})\] Child process with PID (?P<pid>\d{1,10}) terminated with code (?P<code>-?\d{1,3})"
)
_HOROVOD = pattern(r"Process (?P<rank>\d{1,6}) exit with status code (?P<code>\d{1,3})\.$")
_COMPOSER = pattern(
    r"(?:.{0,60}:)?(?:Global rank (?P<rank>\d{1,6}) \(PID (?P<pid>\d{1,10})\) exited with code (?P<code>-?\d{1,3})"
    r"|Rank (?P<crashed>\d{1,6}) crashed with exit code (?P<with>-?\d{1,3})\.?)$"
)
# The command line is that of the last rank that it started on the node, whichever failed.
_DEEPSPEED = pattern(
    r"\[launch\.py:\d+:\w+\] .{0,6000}?(?:--local_rank=(?P<last>\d{1,5}).{0,6000})?"
    r"exits (?:with return code = (?P<code>-?\d{1,3})|with non-zero)"
)
# Of a command that did not start on a node; of others, what they started tells its end.
_PDSH = pattern(r"pdsh@\S{1,80}: (?P<node>[\w.-]{1,80}): ssh exited with exit code (?P<code>126|127|255)$")
# Of DGL's launcher.
_DGL = pattern(
    r"Called process error Command 'ssh .{1,200}?@(?P<node>[\w.-]{1,80}) .{1,4000} returned non-zero exit status"
    r" (?P<code>\d{1,3})\."
)
_SPAWN = pattern(
    r"(?:ProcessExitedException|^Exception): process (?P<rank>\d{1,6}) terminated with "
    r"(?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))"
)
_PARENT = pattern(
    r"subprocess\.CalledProcessError: Command .{1,6000} (?:died with <Signals\.(?P<signal>SIG\w+): \d+>"
    r"|returned non-zero exit status (?P<code>\d{1,3}))"
)
_SAID = pattern(
    r"(?i)(?:.{0,160}\b(?:exit(?:ed|ing)?|returned|failed)(?: with)?(?: non-zero)?(?: exit)?[ -](?:code|status)"
    r"|# Ended \(code|State: FAILED \(exit code|make: \*\*\* .{0,160} Error"
    # German, French, Spanish and Portuguese, Italian, Russian, Chinese, Japanese.
    r"|.{0,160}(?:\b(?:Rückgabewert|code de (?:sortie|retour)"
    r"|código de (?:salida|saída)|codice di uscita|код (?:выхода|возврата|завершения))"
    r"|退出(?:码|代码|状态)|返回(?:码|值)|終了(?:コード|ステータス)))"
    r"[ :=\uff1a]{1,3}\(?(?P<code>[1-9]\d{0,2})\b.{0,80}"
)
BY_LAUNCHER = "the launcher got "
_OF_MPI = ("=", " ", "MPI_ABORT", "with errorcode", "YOUR APPLICATION", "Process name: ", "Exit code: ")
_SHELL = pattern(
    rf"(?:\S{{1,300}}: line \d+: +)?(?P<pid>\d{{1,10}}) +(?P<signal>{_NAMES})(?: +\(core dumped\))? +\S.{{0,4000}}$"
)
_BARE = pattern(rf"(?:\S{{1,300}}: line \d+: )?(?P<signal>Killed|{_NAMES})(?: +\(core dumped\))?$")
_SUBMITIT = pattern(r"submitit\W.{0,80}Caught signal SIG\w+ on \S+: this job is (?P<why>timed-out|preempted)")
_TYPESCRIPT = pattern(r"\[COMMAND_EXIT_CODE=\"(?P<code>\d{1,3})\"\]")  # of script(1)
# Of a script that starts a process for each rank.
_LAUNCHED = pattern(
    r"(?i)(?:\[[\w.-]{1,40}\] |(?P<node>[\w.-]{1,80}): |[A-Z]{4,8}:[\w.]{1,80}:)?"
    r"(?:rank[ -]?|(?:worker|trainer)(?: #?|-(?=\d+ ?\(pid)))"
    r"(?P<rank>\d{1,5}) ?"
    r"(?:\((?:pid[ =]?\d+|[\d.]{7,15})\),? )?"
    r"(?:has |was )?(?:exit(?:ed)?|ended|died|failed|terminated|killed|crashed)(?: with| by| due to| from)?"
    r"(?: (?:(?:exit |return )?(?:code|status)|(?P<signal>signal)))?[ =:]{1,2}(?P<code>-?\d{1,3})\b(?:[ ,;.(].{0,200})?"
)
_RANK_CODE = pattern(
    r"(?i)[\[(]?rank[ =:#_-]?(?P<rank>\d{1,6})[\])]?:?,? (?:\(?pid \d+\)?:? )?(?:has |was )?"
    r"(?:exit(?:ed)?|ended|finished|returned|failed)?,?(?: with| by)?:? ?(?:exit ?)?(?:code|status"
    r"|rc)?[ =:]{1,2}(?P<code>\d{1,3})\.?"
)
# A line of data that a program prints: "PROMPT: srun: error: ...".
_QUOTED = pattern(r"(?!srun|slurm)[A-Za-z_]{2,30}: (?:srun|slurmstepd): ")
_COMPOSE = pattern(
    r"(?P<node>[A-Za-z][\w.-]{0,60}-\d{1,5}) exited with code (?P<code>\d{1,3})(?: \(.{1,60}\))?"
)  # of docker
_RANK_GIVEN = pattern(r"(?<![A-Z_])RANK=(\d{1,6})\b")
# Of PBS and LSF: why they ended a job.
_BATCH_SYSTEM = pattern(
    r"(?:=>> )?(?P<text>(?:PBS: job killed: (?:(?P<walltime>walltime)|(?P<mem>p?v?mem) )?"
    r"|TERM_(?:(?P<runlimit>RUNLIMIT|DEADLINE)|(?P<memlimit>MEMLIMIT|SWAP)|\w{1,30}): job killed ).{1,200})"
)
_DEATH_SIGNAL = pattern(
    r"Received (?:Signals\.)?(?P<signal>SIG[A-Z0-9]{2,8}|\d{1,2}) death signal"
    r"|SignalException: Process \d+ got signal: (?P<number>\d{1,2})$"
)
# What a terminal shows of the key.
_INTERRUPT = pattern(r"\^C(?:$|Traceback|WARNING:|[WE]\d{4} |\[)")
INTERRUPTED = "interrupted at the terminal (Ctrl-C)"
STEP_CANCELLED = "its step was cancelled; the log does not say by whom"
_TABLE_BEGIN = pattern(r"ChildFailedError:\s*$")
_WHY = (
    ("TIME LIMIT", "TIMEOUT"),
    ("PREEMPTION", "PREEMPTED"),
    ("NODE FAILURE", "NODE_FAIL"),
    ("JOB REQUEUE", "REQUEUED"),
    ("OUT OF MEMORY", "OUT_OF_MEMORY"),
    ("DEADLINE", "DEADLINE"),
)


def ends_of(lines: Sequence[Line]) -> Ends:
    """Return the statements on ends in these lines."""
    reader = _Reader(lines)
    for i, line in enumerate(lines):
        if len(line.text) >= SHORTEST and line.text != GAP and not (reader.by_slurm(line) or reader.of_pod(i, line)):
            reader.by_others(i, line)
    signalled = min((end.number for end in reader.job if end.why.startswith(BY_LAUNCHER)), default=None)
    known = [replace(end, stopped=True) if end.pid in reader.stopped else end for end in reader.processes]
    known = _without_killed(known) + _said(lines)
    known = [replace(end, stopped=True) if _is_reaction(end, signalled) else end for end in known]
    return Ends(tuple(known), tuple(reader.job), tuple(reader.kernel), tuple(reader.oom))


def _is_reaction(end: End, signalled: int | None) -> bool:
    """Whether what had started a launcher reports its end after a signal to that."""
    return end.by in ("parent", "script") and signalled is not None and end.number > signalled


def _without_killed(ends: list[End]) -> list[End]:
    """Mark what Intel MPI killed as stopped: its boxes are in the order of the ranks, whichever ended first."""
    by_mpi = [end for end in ends if end.by == "mpirun"]
    own = [end for end in by_mpi if end.signal not in ("SIGKILL", "SIGTERM") and end.code != 0]
    if not own or len(own) == len(by_mpi):
        return ends
    return [replace(end, stopped=True) if end in by_mpi and end not in own else end for end in ends]


class _Reader:
    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.processes: list[End] = []
        self.job: list[JobEnd] = []
        self.kernel: list[Kernel] = []
        self.oom: list[int] = []
        self.stopped: set[int] = set()  # pids that torchrun stopped
        self.mpi = MpiBoxes()
        self.table_end = 0  # the line after the last table of torchrun
        self.step_ends = False  # srun has begun to end the other tasks

    def by_slurm(self, line: Line) -> bool:
        """Read a line of Slurm; return whether it was one."""
        text = line.text
        if _QUOTED.match(text):
            return False
        if not ("srun: " in text or "error: ***" in text or "oom" in text or "xceeded" in text or "OUT_OF" in text):
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

    def of_pod(self, i: int, line: Line) -> bool:
        """Read a line of Kubernetes' description of a pod; return whether it has a container's end."""
        if line.text.startswith("Reason: ") or " Warning " in line.text:
            end = evicted(self.lines, i)
        elif "xit Code:" in line.text or "exitCode" in line.text:
            end = pod_end(self.lines, i)
        else:
            return False
        if end is None:
            return False
        if any(
            each.by == "pod" and each.node == end.node and (each.code, each.signal) == (None, None)
            for each in self.processes
        ):
            return True  # why its pod was ended says more than its container's code
        self.processes.append(end)
        if KILLED in end.text:
            self.kernel.append(Kernel(line.number, end.text, "cgroup"))
        return True

    def by_others(self, i: int, line: Line) -> None:
        """Read a line of a launcher, a shell or the kernel."""
        text = line.text
        if "closing signal" in text and (found := _STOPPED.search(text)):
            self.stopped.add(int(found["pid"]))
        elif _TABLE_BEGIN.search(text):
            self.table_end, rows = table(self.lines, i + 1, line)
            self.processes += rows
        elif text.startswith("Root Cause (first") and i >= self.table_end:
            # The first lines of the table are missing.
            above = range(i, max(self.table_end, i - LONGEST_TABLE), -1)
            first = next((at for at in above if self.lines[at].text == "Failures:"), i)
            while first > self.table_end and OF_TABLE.match(self.lines[first - 1].text):
                first -= 1
            self.table_end, rows = table(self.lines, first, line, borders=1)
            self.processes += rows
        elif _may_be_kernel(text) and (found := _KERNEL.search(text)):
            kind = next(name for name in ("cgroup", "host", "xid", "mce", "disk", "io") if found[name])
            of_memory = kind in ("cgroup", "host")
            self.kernel.append(Kernel(line.number, text.strip()[:300] if of_memory else found[0], kind))
        elif " Job " in text[:60] and text[:3].isdigit() and (condor := condor_end(self.lines, i)) is not None:
            self.processes.append(condor)
        elif "job killed" in text and (found := _BATCH_SYSTEM.match(text)):
            of_memory = bool(found["mem"] or found["memlimit"])
            self.oom += [line.number] if of_memory else []
            state = (
                "TIMEOUT" if found["walltime"] or found["runlimit"] else "OUT_OF_MEMORY" if of_memory else "CANCELLED"
            )
            why = f"the batch system ended the job: {found['text'].strip()}"
            self.job.append(JobEnd(line.number, text, state, None, None, whole=True, why=why))
        elif (
            text.startswith(_OF_MPI) and "(exitcode: " not in text  # of torchrun, by rich's logging handler
        ):
            self.mpi.read(line, self.processes)
        elif ("death signal" in text or "got signal" in text) and (found := _DEATH_SIGNAL.search(text)):
            self.job.append(_stopped_by(line, found["signal"] or found["number"]))
        elif "submitit" in text and (found := _SUBMITIT.search(text)):
            state = "TIMEOUT" if found["why"] == "timed-out" else "PREEMPTED"
            self.job.append(JobEnd(line.number, text, state, None, None, whole=False))
        elif "^C" in text and _INTERRUPT.search(text):
            self.job.append(JobEnd(line.number, text, "CANCELLED", None, None, whole=False, why=INTERRUPTED))
        else:
            after = self.lines[i + 1].text if i + 1 < len(self.lines) else ""
            end = by_mpi(line, after) or _by_launcher(line) or _by_shell(line)
            self.processes += [end] if end is not None else []


def _said(lines: Sequence[Line]) -> list[End]:
    """Return what a script prints about an exit code as the last of all, such as seff's summary."""
    for line in reversed(lines[-SUMMARY_LINES:]):
        if (typescript := _TYPESCRIPT.search(line.text)) is not None:
            return [End(line.number, "script", line.text, code=int(typescript["code"]))]
        found = _SAID.fullmatch(line.text.strip()) if "srun: " not in line.text else None
        if found is not None and line.rank is None:
            return [End(line.number, "script", line.text, code=int(found["code"]))]
        if not is_aftermath(line.text):
            break
    return []


def _by_launcher(line: Line) -> End | None:
    """Return the end that a launcher states in a line."""
    text = line.text
    if text[:40].lower().lstrip("[( ").startswith("rank") and (found := _RANK_CODE.fullmatch(text.strip())):
        code = int(found["code"])
        return of_code(End(line.number, "script", line.text, rank=int(found["rank"])), code)
    if (" with " in text or " by " in text or " from " in text) and (found := _LAUNCHED.fullmatch(text.strip())):
        code = int(found["code"])
        code = -abs(code) if found["signal"] else code
        return _end(line, "script", str(code), rank=int(found["rank"]), node=found["node"]) if code else None
    if "xitcode: " in text and (found := _TORCHRUN.search(text)):
        agent = _AGENT.search(text)
        end = _end(line, "torchrun", found["code"], local=int(found["local"]), pid=int(found["pid"]))
        return replace(end, agent=agent["agent"]) if agent else end
    if "Child process with PID" in text and (found := _LIGHTNING.search(text)):
        return _end(line, "lightning", found["code"], rank=int(found["rank"]), pid=int(found["pid"]))
    if "launch.py:" in text and (found := _DEEPSPEED.search(text)):
        only = 0 if found["last"] == "0" else None
        return _end(line, "deepspeed", found["code"] or "1", local=only, node=line.node)
    if text.startswith("Called process error Command 'ssh ") and (found := _DGL.match(text)):
        return _end(line, "ssh", found["code"], node=found["node"])
    if "xception: process " in text and (found := _SPAWN.search(text)):
        end = End(line.number, "spawn", text, rank=int(found["rank"]), signal=found["signal"])
        return replace(end, code=int(found["code"])) if found["code"] else end
    if "CalledProcessError: " in text and (found := _PARENT.match(text)):
        end = End(line.number, "parent", text[:300], signal=found["signal"])
        return replace(end, code=int(found["code"])) if found["code"] else end
    if "exit with status code" in text and (found := _HOROVOD.match(text)):
        code = int(found["code"])
        end = of_code(End(line.number, "horovod", line.text, rank=int(found["rank"])), code)
        # After the first failure it stops the other ones.
        return replace(end, stopped=found["code"] in ("137", "143"))
    if ("Global rank " in text or " crashed with exit" in text) and (found := _COMPOSER.match(text)):
        pid = None if found["pid"] is None else int(found["pid"])
        rank = int(found["rank"] or found["crashed"])
        end = _end(line, "composer", found["code"] or found["with"], rank=rank, pid=pid)
        return replace(end, stopped=end.signal == "SIGTERM")
    if " exited with code " in text and (found := _COMPOSE.fullmatch(text.strip())):
        code = int(found["code"])
        return of_code(End(line.number, "compose", line.text, node=found["node"]), code)
    return None


def _by_shell(line: Line) -> End | None:
    text = line.text.strip()
    if "ssh exited with exit code" in text and (found := _PDSH.search(text)):
        return _end(line, "pdsh", found["code"], node=found["node"])
    found = _SHELL.match(text) if text[:1].isdigit() or ": line " in text else None
    if found is not None:
        named = _RANK_GIVEN.search(text)
        rank = int(named[1]) if named is not None and line.rank is None else line.rank
        return End(line.number, "shell", text, rank=rank, signal=SIGNALS[found["signal"]], pid=int(found["pid"]))
    found = _BARE.match(text) if len(text) < LONGEST_BARE else None
    return End(line.number, "shell", text, rank=line.rank, signal=SIGNALS[found["signal"]]) if found else None


def _may_be_kernel(text: str) -> bool:
    return (
        ("ill" in text and "rocess" in text) or "NVRM" in text or "kernel" in text or "mce:" in text or "oom-" in text
    )


def _end(line: Line, by: str, code: str, **more: object) -> End:
    end = End(line.number, by, line.text, **more)  # type: ignore[arg-type]
    return with_code(end, int(code))


def _of_srun(line: Line, found: re.Match[str], aborted: bool) -> End:
    end = End(line.number, "srun", line.text, node=found["node"], tasks=tuple(numbers(found["tasks"])))
    if found["oom"]:
        return replace(end, signal="SIGKILL", oom=True)
    if found["code"]:
        return replace(end, code=int(found["code"]))
    name = SIGNALS[found["signal"]]
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
    whole = found["what"] == "JOB"
    text = "" if whole or state != "CANCELLED" else STEP_CANCELLED
    return JobEnd(line.number, line.text, state, node, job, whole or bool(why), found["at"], text)


def _stopped_by(line: Line, which: str) -> JobEnd:
    """Return the end of a launcher by a signal from outside, given by name or number."""
    name = signal_name(int(which)) if which.isdecimal() else which
    closed = ": its terminal or connection was closed" if name == "SIGHUP" else ""
    where = f" on {line.node}" if line.node else ""
    why = f"{BY_LAUNCHER}{name} from outside{where}{closed}"
    return JobEnd(line.number, line.text, "CANCELLED", None, None, whole=False, why=why)
