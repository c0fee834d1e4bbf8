"""Parsers of scontrol's, sacct's and sinfo's output on jobs and nodes (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ftslurm.slurm.errors import SlurmOutputError
from ftslurm.slurm.facts import ENDED, JobFacts, NodeFacts
from ftslurm.slurm.nodelist import NodeListError, expand

__all__ = [
    "SACCT_DELIMITER",
    "SACCT_FIELDS",
    "parse_job_records",
    "parse_kill_wait_s",
    "parse_max_batch_requeue",
    "parse_node",
    "parse_node_states",
    "parse_partition_nodes",
    "parse_sacct",
    "parse_sacct_fields",
]

SACCT_DELIMITER = "\x1f"
SACCT_FIELDS = (
    "JobIDRaw", "JobID", "State", "ExitCode", "Submit", "Start", "End", "TimelimitRaw", "NodeList", "WorkDir",
    "Reason", "Restarts", "FailedNode", "StdOut", "StdErr",
)  # fmt: skip
"""Requested fields; the available ones depend on the version of sacct (`sacct -e`)."""

_TIME_LIMIT = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)")
_NOTHING = {"", "(null)", "N/A", "None", "Unknown", "None assigned", "INVALID"}


def parse_job_records(text: str) -> list[JobFacts]:
    """Parse `scontrol show job ID`; [] for its "No jobs in the system".

    Not the one-line form (`-o`): a job's name, paths and comment may contain anything, even
    `JobState=FAILED`, and only in this form each of them extends to the end of its line.

    Raises:
        SlurmOutputError: there is text, but no job record in it, or an invalid record.
    """
    records: list[dict[str, str]] = []
    for line in text.splitlines():
        if line.startswith("JobId="):
            records.append({})
        key, equals, _ = line.lstrip().partition("=")
        if equals and records:
            records[-1].setdefault(key, line.lstrip())
    if not records and "No jobs in the system" not in text:
        raise _output_error("scontrol show job", "a record that starts with JobId=", text)
    return [_job_record(lines) for lines in records]


def _job_record(lines: Mapping[str, str]) -> JobFacts:
    head = lines["JobId"].partition(" JobName=")[0] + " "
    requeue, times, limits = lines.get("Requeue", ""), lines.get("StartTime", ""), lines.get("RunTime", "")
    job_id, state = _value(head, "JobId"), _value(lines.get("JobState", ""), "JobState")
    if not (job_id and state):
        raise _output_error("scontrol show job", "JobId= and JobState=", " ".join(lines.values()))
    return JobFacts(
        job_id=job_id,
        state=state,
        reason=_value(lines["JobState"], "Reason"),
        exit_code=_exit_code(_value(requeue, "ExitCode"), state),
        restarts=_int(_value(requeue, "Restarts")),
        node_list=_nodes(_value(lines.get("NodeList", ""), "NodeList")),
        submit_ns=_time_ns(_value(lines.get("SubmitTime", ""), "SubmitTime")),
        start_ns=_time_ns(_value(times, "StartTime")),
        end_ns=_time_ns(_value(times, "EndTime")),
        time_limit_s=_time_limit_s(_value(limits, "TimeLimit")),
        work_dir=_rest(lines, "WorkDir"),
        std_out=_rest(lines, "StdOut"),
        std_err=_rest(lines, "StdErr"),
        requeue={"0": False, "1": True}.get(_value(requeue, "Requeue") or ""),
        array_job_id=_value(head, "ArrayJobId"),
        array_task_id=_value(head, "ArrayTaskId"),
        preempted_ns=_time_ns(_value(lines.get("PreemptEligibleTime", ""), "PreemptTime")),
        partition=_value(lines.get("Partition", ""), "Partition"),
        num_nodes=_num_nodes(lines),
        batch_host=_batch_host(lines),
        batch={"0": False, "1": True}.get(_value(requeue, "BatchFlag") or ""),
        excluded=_nodes(_value(lines.get("ReqNodeList", ""), "ExcNodeList")),
        priority=_int(_value(lines.get("Priority", ""), "Priority")),
        comment=(_rest(lines, "Comment") or "").strip() or None,
    )


def _batch_host(lines: Mapping[str, str]) -> str | None:
    # Jobs of salloc have a BatchHost too.
    return _rest(lines, "BatchHost") if _value(lines.get("Requeue", ""), "BatchFlag") == "1" else None


def _num_nodes(lines: Mapping[str, str]) -> int | None:
    """Return the number of nodes: while a job completes, NumNodes counts down, but its TRES keep the full number."""
    numbers = [_int((_value(lines.get("NumNodes", ""), "NumNodes") or "").partition("-")[0])]
    for key in ("ReqTRES", "TRES", "AllocTRES"):
        match = re.search(r"(?:=|,)node=([0-9]{1,9})(?:,|$)", lines.get(key, ""))
        numbers += [int(match.group(1))] if match else []
    return max((number for number in numbers if number), default=None)


def parse_sacct_fields(text: str) -> tuple[str, ...]:
    """Return those of SACCT_FIELDS that `sacct -e` lists; SlurmOutputError if not even the basic ones."""
    known = set(text.split())
    fields = tuple(field for field in SACCT_FIELDS if field in known)
    if not {"JobIDRaw", "JobID", "State"} <= set(fields):
        raise _output_error("sacct -e", "a list of fields with JobIDRaw, JobID and State", text)
    return fields


def parse_sacct(text: str, fields: Sequence[str]) -> list[JobFacts]:
    """Parse `sacct -D -X -P -n` with these fields and SACCT_DELIMITER: one record per start of each job.

    Raises:
        SlurmOutputError: a line has a wrong number of values, or is invalid.
    """
    facts = []
    for line in text.splitlines():
        values = line.split(SACCT_DELIMITER)
        if len(values) != len(fields):
            raise _output_error("sacct", f"{len(fields)} values", line)
        facts.append(_sacct_row(dict(zip(fields, values, strict=True)), line))
    return facts


def _sacct_row(row: Mapping[str, str], line: str) -> JobFacts:
    def get(field: str) -> str | None:
        return None if row.get(field, "") in _NOTHING else row[field]

    job_id, (state, _, user) = get("JobIDRaw"), (get("State") or "").partition(" by ")
    state = state.partition(" ")[0]
    if job_id is None or not job_id.isdecimal() or not state:
        raise _output_error("sacct", "a job id and a state", line)
    array_job, underscore, array_task = row["JobID"].partition("_")
    minutes = _int(get("TimelimitRaw"))
    return JobFacts(
        job_id=job_id,
        state=state,
        reason=get("Reason"),
        exit_code=_exit_code(get("ExitCode"), state),
        restarts=_int(get("Restarts")),
        node_list=_nodes(get("NodeList")),
        submit_ns=_time_ns(get("Submit")),
        start_ns=_time_ns(get("Start")),
        end_ns=_time_ns(get("End")),
        time_limit_s=None if minutes is None else 60 * minutes,
        work_dir=get("WorkDir"),
        std_out=get("StdOut"),
        std_err=get("StdErr"),
        array_job_id=array_job if underscore else None,
        array_task_id=array_task.strip("[]") if underscore else None,
        failed_node=get("FailedNode"),
        cancelled_by=_int(user) if state == "CANCELLED" else None,
        source="sacct",
    )


def parse_node_states(text: str) -> dict[str, str]:
    """Parse `scontrol show node -o`: name to state in Slurm's spelling, `IDLE+DRAIN`, `DOWN+NOT_RESPONDING`.

    Raises:
        SlurmOutputError: a line is neither a node's record nor "Node X not found".
    """
    states = {}
    for line in text.splitlines():
        name, state = _value(line, "NodeName"), _value(line, "State")
        if name and state:
            states[name] = state
        elif line.strip() and not (line.startswith("Node ") and line.endswith(" not found")):
            raise _output_error("scontrol show node", "NodeName= and State=", line)
    return states


def parse_node(text: str, name: str) -> NodeFacts | None:
    """Parse one node's record of `scontrol show node -o NAME`; None: Slurm knows no such node.

    Raises:
        SlurmOutputError: there is neither a record nor "Node X not found".
    """
    state = parse_node_states(text).get(name)
    if state is None:
        return None
    # An administrator's text, up to [user@time].
    match = re.search(r"\sReason=(.*?) \[[^\[\]\s]*@[^\[\]\s]*\]", text) or re.search(r"\sReason=(.*)", text)
    reason = match.group(1).strip() if match else ""
    boot_ns = _time_ns(_value(text, "BootTime"))
    return NodeFacts(name, state, None if reason in _NOTHING else reason, boot_ns)


def parse_partition_nodes(text: str) -> dict[str, str]:
    """Parse `sinfo -h -N -o '%N|%T'`: name to state in sinfo's spelling, `idle`, `drained*`.

    Raises:
        SlurmOutputError: a line has another format.
    """
    states = {}
    for line in text.splitlines():
        name, bar, state = line.strip().partition("|")
        if not (name and bar and state):
            raise _output_error("sinfo", "NODE|STATE", line)
        states[name] = state
    return states


def parse_partition_grace_s(text: str) -> int | None:
    """Parse GraceTime (seconds) from `scontrol show partition`; None: its jobs are not preempted, or it is missing."""
    fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
    mode = fields.get("PreemptMode", "OFF").split(",")
    return None if "OFF" in mode else _int(fields.get("GraceTime", ""))


def parse_kill_wait_s(text: str) -> int | None:
    """Parse KillWait (seconds) from `scontrol show config`, None if it is missing.

    Raises:
        SlurmOutputError: the text is no configuration, or KillWait is no number of seconds.
    """
    pairs = (line.partition(" = ") for line in text.splitlines())
    config = {key.strip(): value.strip() for key, equals, value in pairs if equals}
    if not config:
        raise _output_error("scontrol show config", "lines like 'KillWait = 30 sec'", text)
    if "KillWait" not in config:
        return None
    seconds = _int(config["KillWait"].partition(" ")[0])
    if seconds is None:
        raise _output_error("scontrol show config", "KillWait = N sec", config["KillWait"])
    return seconds


def parse_max_batch_requeue(text: str) -> int | None:
    """Parse MaxBatchRequeue from `scontrol show config`; None if it is missing, as in 22.05."""
    match = re.search(r"^MaxBatchRequeue\s*=\s*([0-9]{1,9})\s*$", text, re.MULTILINE)
    return int(match[1]) if match else None


def _value(line: str, key: str) -> str | None:
    """Return the value after the first `key=` of a line; None for Slurm's placeholders of empty values."""
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return None if match is None or match.group(1) in _NOTHING else match.group(1)


def _rest(lines: Mapping[str, str], key: str) -> str | None:
    value = lines.get(key, "").partition("=")[2]
    return None if value in _NOTHING else value


def _exit_code(text: str | None, state: str) -> tuple[int, int] | None:
    """Parse `137:0`. Slurm prints 0:0 before the end, which must not be read as success."""
    if text is None or state not in ENDED | {"COMPLETING"}:
        return None
    code, _, signal = text.partition(":")
    numbers = _int(code), _int(signal)
    if numbers[0] is None or numbers[1] is None:
        raise _output_error("scontrol or sacct", "an exit code like 0:0", text)
    return numbers[0], numbers[1]


def _nodes(text: str | None) -> tuple[str, ...]:
    try:
        return tuple(expand(text or ""))
    except NodeListError as error:
        raise SlurmOutputError(f"cannot read what scontrol or sacct printed: {error}") from None


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 12 else None


def _time_ns(text: str | None) -> int | None:
    """Parse a time printed with SLURM_TIME_FORMAT=%s; None for a date, whose zone is unknown."""
    seconds = _int(text)
    return seconds * 1_000_000_000 if seconds else None


def _time_limit_s(text: str | None) -> int | None:
    """Parse `1-02:03:04`; None for UNLIMITED and Partition_Limit."""
    match = _TIME_LIMIT.fullmatch(text or "")
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds


def _output_error(command: str, expected: str, found: str) -> SlurmOutputError:
    found = ascii(found if len(found) <= 160 else found[:160] + "...")
    return SlurmOutputError(f"cannot read what `{command}` printed: expected {expected}, found {found}")
