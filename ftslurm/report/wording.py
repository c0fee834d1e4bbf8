"""Phrases shared by all renderers: what failed and where, and findings (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ftslurm.pattern import pattern
from ftslurm.report.layout import Style
from ftslurm.report.stopped import is_interrupted, stop_result
from ftslurm.text import clip, duration, first_line, names, plural, safe, short_host

Json = Mapping[str, Any]

NODES_SHOWN = 3
NODE_SHOWN = 32  # characters

JOB_KINDS = ("time-limit", "preempted", "cancelled", "scheduler")
"""Kinds of failures that Slurm caused: of the whole job, of no rank and no node."""

WORKER_KINDS = ("exception", "exit", "signal", "spawn")
"""Kinds of failures of one rank, which a log may leave unnamed."""

OF_JOB = ("step-refused", "step-launch", "batch-script")
"""Causes that lie before any rank."""

AGENT_DEFECT, DEFECT = "agent-defect", "its agent ended by a defect of ftslurm: "
"""The cause of a node that was lost by a defect, and the reason in its death notice."""

_OF_TORCHRUN = pattern(r"/elastic/(?:rendezvous|agent)/|/bin/torchrun$")
_OF_LAUNCHER = pattern(r"/deepspeed/launcher/runner\.py$|/bin/(?:deepspeed|horovodrun|colossalai)$")
_OWN_PLACE = pattern(r" \([^()\s]+\.py:\d+ in [^()\s]+\)$")
# torchrun's folder of a run without an id, which is no node.
_RUN_FOLDER = pattern(r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|none)_\w{8}")
# gloo and c10d begin their messages with their own source location, which fills half a line.
_SHAPE = pattern(r"\btorch\.Size\((\[[\d, ]*\])\)")
_NATIVE_PLACE = pattern(r"\[[^\]\s]{1,300}\.(?:cc|cpp|cu|h|hpp):\d+\]:? ?")


SILENT = "nothing was printed for the last "
"""Begins what a log without stacks shows of a job that had perhaps hung when it was ended."""
STALLED = "by Horovod's inspector: "
"""Begins what a log with the lines of Horovod's stall inspector shows of it."""
THREAD = "a thread of it had ended: "
"""Begins what a log shows in which a thread ended by an exception, and little was printed after that."""
STACKS = "by the stacks in the log: "
"""Begins what a log with stacks shows of it."""
STANDING = (SILENT, STALLED, THREAD, STACKS)
"""Begin what a log shows of a job that had perhaps hung."""
RAISED = "when it was stopped, it raised "
"""Begins what a log shows of a program that could not end in order."""


def brief(text: str) -> str:
    """Return a message's first line without source locations of the runtime; shapes without their type."""
    return first_line(_SHAPE.sub(r"\1", _NATIVE_PLACE.sub("", text[: 64 * 1024])))


_BATCH_SCRIPT = pattern(r"/slurm_script: (?:No such file|Permission denied)")


def cost_of(cost: Json) -> str:
    """``next round 1.1 s later, 20 steps repeated``; empty if nothing is known."""
    parts = []
    if cost["until_next_round_s"] is not None:
        queue = ", in another attempt" if cost["requeued"] else ""
        parts.append(f"next round {duration(cost['until_next_round_s'])} later{queue}")
    if cost["steps_repeated"] is not None:
        parts.append(f"{plural(cost['steps_repeated'], 'step')} repeated")
    return ", ".join(parts)


def subject(failure: Json) -> str:
    """``rank 3 on n2``, ``all 4 ranks``, or the lost nodes."""
    if failure.get("alike"):
        return safe(failure["alike"]["subject"])
    places = [each for each in (failure.get("where"), failure.get("raised_in")) if each]
    if failure["rank"] is None and any(_OF_TORCHRUN.search(each["file"]) for each in places):
        # Before it had started a rank.
        return f"torchrun{_on(failure['node'])}"
    if failure["rank"] is None and any(_OF_LAUNCHER.search(each["file"]) for each in places):
        return f"the launcher{_on(failure['node'])}"
    if failure["rank"] is None and any(
        line.startswith("sbatch: error: ") for line in failure.get("evidence_lines") or ()
    ):
        return "sbatch"
    if failure["rank"] is None and _BATCH_SCRIPT.search(failure.get("what") or ""):
        return f"the batch script{_on(failure['node'])}"
    if failure["rank"] is None and failure.get("kind") in WORKER_KINDS:
        local = failure.get("local_rank")
        return f"{'some rank' if local is None else f'local rank {local}'}{_on(failure['node'])}"
    if failure["rank"] is None:
        nodes = failure["nodes"]
        if not nodes:
            return "a node"
        return f"node {safe(nodes[0])}" if len(nodes) == 1 else f"nodes {names(nodes)}"
    if failure.get("hang") and failure["ranks"] != str(failure["rank"]) and failure["hang"]["verdict"] != "none":
        return f"ranks {clip(failure['ranks'], 24)} on {names(failure['nodes'])}"
    if failure["node"] is None or _RUN_FOLDER.fullmatch(failure["node"]):
        return rank_of(failure)
    return f"rank {failure['rank']}{_on(failure['node'])}"


def _on(node: str | None) -> str:
    """`` on n2``; of a process of Ray `` on 10.0.0.5 (pid 77)``, or `` (pid 77)`` on an unnamed node."""
    if not node:
        return ""
    ip, border, pid = node.rpartition("pid ")
    if not border or not pid.isdecimal():
        return f" on {short_host(safe(node))}"
    return f" on {safe(ip.strip())} (pid {pid})" if ip else f" (pid {pid})"


def first_of(failure: Json) -> str:
    """``rank 3 on n2``: where a failure was noticed first; without a node whose name is only a launcher's folder."""
    if failure["node"] is not None and len(failure["node"]) > NODE_SHOWN:
        return rank_of(failure)
    return subject({**failure, "alike": None})


def rank_of(failure: Json) -> str:
    """``rank 3``; of a log that does not name it, ``some rank``."""
    return "some rank" if failure["rank"] is None else f"rank {failure['rank']}"


def what(failure: Json) -> str:
    """Describe a failure in one line."""
    text = brief(failure["what"]) or failure["title"]
    text = text.removesuffix(f" (on rank {failure['rank']})")
    if not failure["core_dumped"]:
        return text
    return f"{text[:-1]}, core dumped)" if text.endswith(")") else f"{text} (core dumped)"


_SENTENCES = ("collectives", "missing")
"""Verdicts on hangs whose description is a sentence with the rank as its subject."""


def verdict(failure: Json) -> str:
    """``rank 3 on n2: ValueError: boom``, ``node n2 was lost ...``."""
    if failure["rank"] is None and (failure.get("kind") in (*JOB_KINDS, "unreachable") or failure["cause"] in OF_JOB):
        return what(failure)
    if failure["cause"] == AGENT_DEFECT and DEFECT in what(failure):
        # Of several nodes, one after the other: the first one's.
        return crash(failure["nodes"], what(failure).partition(DEFECT)[2].partition("; ")[0])
    by_nodes = failure["rank"] is None and failure.get("kind") not in WORKER_KINDS
    by = failure["hang"]["verdict"] if failure.get("hang") else ""
    if by in ("collectives-parties", "too-few"):
        # It names its ranks itself.
        return what(failure)
    if failure.get("awaited"):
        return _not_come(failure)
    # "rank 2 on n2 calls all_gather #118 where ...": a sentence, as of a node.
    return f"{subject(failure)}{' ' if by_nodes or by in _SENTENCES else ': '}{what(failure)}{follows(failure)}"


def _not_come(failure: Json) -> str:
    """``rank 2 has not come to a monitored barrier, where rank 0 on n1 gave up``."""
    ranks = clip(failure["awaited"], 24)
    has = "has" if ranks.isdecimal() else "have"
    return f"{those_ranks(ranks)} {has} not come to a monitored barrier, where {subject(failure)} gave up"


def follows(failure: Json) -> str:
    """`` (rank 2 had not failed)``: what it follows from; empty if nothing is known of that."""
    return f" ({failure['follows']})" if failure.get("follows") else ""


def crash(nodes: Collection[str], error: str) -> str:
    """``ftslurm's agent crashed on n1: KeyError: 'x': a defect of ftslurm``; the place is with the defect itself."""
    error = _OWN_PLACE.sub("", error).rstrip(": ")
    return f"ftslurm's agent{'s' if len(nodes) > 1 else ''} crashed on {names(nodes)}: {error}: a defect of ftslurm"


def crashes(report: Json) -> list[str]:
    """Return a line for each defect of ftslurm that ended agents."""
    found = [each for each in report["defects"] if each["part"] is None]
    return [crash(each["nodes"], first_line(each["error"])) for each in found]


def stopped_by(report: Json) -> str:
    """Describe what stopped a run from outside: Slurm's reason, else the recorded one; and what became of the ranks."""
    cause = report["cause"]
    if cause is not None and cause["kind"] in JOB_KINDS:
        return f"{what(cause)}{stop_result(report)}"
    if is_interrupted(report):
        return f"{first_line(report['stop']['reason'])}{stop_result(report)}"
    return first_line(report["reason"] or "") or "why is not recorded"


def standstill_of(report: Json) -> Json | None:
    """Return that no rank had moved before the run was stopped from outside; None: ranks moved, or it is unknown."""
    stopped = report["status"] == "stopped" and report["rounds"] and not is_interrupted(report)
    found: Json | None = report["rounds"][-1]["standstill"] if stopped else None
    return found


def still_lines(still: Json | None) -> list[str]:
    """Return the lines about it, with its advice."""
    return [] if still is None else [safe(still["text"]), f"hint: {still['advice']}"]


def place(failure: Json) -> str:
    """``train.py:42 in train_step``, or empty without a known line."""
    where = failure["where"]
    if where is None:
        return ""
    function = safe(where["function"])
    tail = f" in {function}" if function and function != "<module>" else ""
    return f"{safe(where['shown'])}:{where['line']}{tail}"


def moment(failure: Json) -> str:
    """``step 120, round 2``, or ``in round 2``."""
    if failure["kind"] == "health-check":
        # There was no further round to take part in.
        return f"after round {failure['round']}" if failure["round"] else "before the first round"
    if failure["step"] is None:
        return f"in round {failure['round']}"
    return f"step {failure['step']}, round {failure['round']}"


def step_of(entry: Json) -> str:
    """``step 120``, ``optimizer step 120``, or empty: the last one of a round."""
    if entry["last_step"] is None and entry["optimizer_steps"] is not None:
        return f"optimizer step {entry['optimizer_steps']['last']}"
    return "" if entry["last_step"] is None else f"step {entry['last_step']}"


def after(report: Json) -> str:
    """`` after 1 recovered failure and 2 interruptions``; empty if nothing happened."""
    parts = []
    if report["recovered"]:
        parts.append(plural(len(report["recovered"]), "recovered failure"))
    if report["interrupted"]:
        parts.append(plural(len(report["interrupted"]), "interruption"))
    return f" after {' and '.join(parts)}" if parts else ""


def summary(report: Json) -> str:
    """The whole report in one line."""
    run, status, cause = safe(report["run"]["id"]), report["status"], report["cause"]
    if status == "succeeded":
        return f"{run} succeeded{after(report)}"
    if status == "stopped":
        how = "interrupted" if is_interrupted(report) else "stopped"
        still = standstill_of(report)
        text = f"; {safe(still['text'])}" if still is not None else ""
        return f"{run} was {how}: {stopped_by(report)}{text}"
    if status == "failed" and cause is None:
        return f"{run} failed: {first_line(report['reason'] or 'why is not recorded')}"
    state = {"failed": "failed", "running": "is still running"}.get(status, "has no recorded end")
    if report["job"] is not None:
        return f"{run} has no run: {first_line(report['job']['note'])}"
    return f"{run} {state}" if cause is None else f"{run} {state}: {verdict(cause)}"


def ranks_of(text: str, number: int, nodes: list[str], node_count: int) -> str:
    """``rank 412 on n51``, ``1023 ranks (0-411, 413...)``."""
    where = f" on {safe(nodes[0])}" if node_count == 1 else ""
    if number == 1:
        return f"rank {text}{where}"
    return f"ranks {text}{where}" if number <= 64 and len(text) <= 18 else f"{number} ranks ({clip(text, 18)})"


def those_ranks(text: str) -> str:
    """``rank 1``, ``ranks 0-3, 7``."""
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"


def finding(each: Json, style: Style) -> str:
    """``n17: GPU 3: 2 uncorrected ECC errors (first seen 03-01 03:12:05, 40 s before rank 139 failed)``."""
    where = nodes_of(each)
    subject = f"{safe(each['subject'])}: " if each["subject"] else ""
    relation = f", {each['relation']['text']}" if each["relation"] is not None else ""
    warning = "warning: " if each["status"] == "warn" else ""
    return f"{where}: {warning}{subject}{safe(each['text'])} (first seen {style.date(each['since_ns'])}{relation})"


def nodes_of(each: Json) -> str:
    """``n17``, ``39 nodes (n1, n2, n3, ...)``."""
    number = each["node_count"]
    if number == 1:
        return safe(each["node"])
    return f"{number} nodes ({names(each['nodes'][:NODES_SHOWN])}{', ...' if number > NODES_SHOWN else ''})"
