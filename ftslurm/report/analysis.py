"""From a snapshot of a run directory to the report dictionary (pure)."""

from __future__ import annotations

from typing import Any

from ftslurm.report.accounting import account
from ftslurm.report.clocks import far_off
from ftslurm.report.defects import defects_report
from ftslurm.report.facts import Snapshot
from ftslurm.report.health import health_report, refused
from ftslurm.report.job_only import job_report
from ftslurm.report.missing import missing
from ftslurm.report.ranks import failed_ranks, rank_report
from ftslurm.report.repeats import repeats
from ftslurm.report.rounds import round_report
from ftslurm.report.scheduler import explain_rounds, job_failure, scheduler_report
from ftslurm.report.step import step_end, step_report
from ftslurm.report.wording import summary

SCHEMA = "ftslurm/report"
VERSION = 1
# Without a recorded end, a run whose node records changed within this time counts as running. Far more
# than a heartbeat interval, because a shared filesystem can stall for a minute without a fault.
ALIVE_S = 90.0
_DAY_NS = 86_400 * 10**9

Dict = dict[str, Any]


def analyse(
    snapshot: Snapshot, *, round_number: int | None = None, rank: int | None = None, every: bool = False
) -> Dict:
    """Analyse a snapshot.

    Args:
        snapshot: what `ftslurm.report.gathering.gather` read.
        round_number: the round to analyse; None lets the report choose (the one that the job failed in).
        rank: a rank to report in full, in that round (or the newest one).
        every: whether to report all ranks that failed there in full.

    Returns:
        The report, plain JSON types only. Keys are always present; unknown values are null. Times are
        nanoseconds since the epoch (``_ns``) by the clock of the node that wrote them, corrected where that clock
        is known to be far off; durations are seconds (``_s``).

        - ``schema`` "ftslurm/report", ``version`` 1, ``made_ns``
        - ``summary``: the report in one line
        - ``source``: "ftslurm", or a description of another source; then ``status`` is "failed" if the newest round
          has a failure, else "unfinished"
        - ``status``: "succeeded", "failed", "stopped" (from outside), "running", or "unfinished" (no end was
          recorded and there was no recent activity); ``exit_code``, ``reason``, ``ended_ns`` as recorded
        - ``run``: ``id``, ``directory``, ``user``, ``created_ns``, ``ftslurm`` (version), ``attempts`` (names),
          ``command``
        - ``started_ns``, ``duration_s``, ``last_step``, ``max_restarts``, ``restarts_used``
        - ``alive``: the newest activity of a node: ``time_ns``, ``age_s``, ``node``; or null
        - ``cause``: why the job failed or is failing: the ``first_failure`` of that round; or null
        - ``focus``: the round whose evidence is shown; or null
        - ``recovered``, ``interrupted``: numbers of the rounds whose failure, or stop from outside, the
          job survived
        - ``cost``: over all of those: ``rounds``, ``between_rounds_s``, ``steps_repeated``
        - ``rounds``: oldest first, each with

          - ``round``, ``attempt``, ``nodes`` (names), ``world_size``, ``started_ns``, ``ended_ns``,
            ``duration_s``, ``first_step``, ``last_step``, ``reason``
          - ``outcome``: "running", "succeeded", "failed", "node-lost", "stopped" or "unknown"
          - ``first_failure``: ``rank`` (null for a lost node), ``local_rank``, ``node``, ``nodes``, ``host``,
            ``round``, ``step``, ``time_ns``; ``kind`` ("exception", "exit", "signal", "spawn", "node-lost", "hang"),
            ``exit_code``, ``signal``, ``core_dumped``, ``what`` (text); ``cause``, ``title``, ``role`` and
            ``advice`` (the row of `ftslurm.failures.causes`); ``where`` (in the user's code) and
            ``raised_in`` (if elsewhere), each ``file``, ``shown`` (short), ``line``, ``function``, ``source``;
            ``traceback``, ``stacks``; ``log``: ``stream``, ``path``, ``size`` (bytes), ``lines``, ``cut``;
            ``signature``, ``same_as_rounds``, ``ranks``, ``argv``, ``evidence`` (its sources),
            ``uncertainty_s``: error of ``time_ns`` relative to other nodes' times; ``clock``: "measured", or
            "assumed" where that error is only a typical one;
            ``evidence_lines`` (the evidence as text), ``restart`` ("same-node", "other-node" or "pointless": which
            restart makes sense); ``hang``: of a
            hang, ``rank``, ``node`` and ``message`` of the time-out that expired, which need not be the suspect rank,
            ``since_ns`` (time of that rank's last progress), and ``verdict`` as below; else null
          - ``whereabouts``: of a hang, the ranks' locations: ``verdict`` and ``text`` of `ftslurm.monitor.triage`;
            ``groups`` of ranks at the same location, suspects first: ``ranks``, ``count``, ``nodes`` (at most 8),
            ``node_count``, ``suspect``, ``waits`` (for other ranks), ``text``, ``problem`` (why there are no stacks),
            ``facts`` (of /proc, where there is a problem), ``native`` (lines of py-spy); ``more_groups``; ``tree``
            of the first groups' stacks: ``ranks``, ``count``, ``frames`` (outermost first), ``children``; ``missing``:
            ranks without collected stacks, ``ranks`` and ``count``, or null. Null without stacks
          - ``slow``: ranks that were persistently slower (`ftslurm.monitor.step_times`), the slowest first:
            ``rank``, ``node``, ``median_s`` and ``others_s`` (medians of the time between two steps)
          - ``same_time``: the first primary failure of each other node that the clocks do not prove to be later:
            ``rank``, ``node``, ``what``, ...; ``uncertainty_s``: the least difference that would prove it; ``clock``
          - ``groups``: the other ranks that failed, by signature: ``ranks`` ("0-3, 7"), ``count``, ``nodes``
            (at most 8), ``node_count``, ``what``, ``cause``, ``title``, ``role`` ("primary" or "cascade"),
            ``first_ns``
          - ``stopped``: ranks that ftslurm stopped: ``ranks``, ``count``, ``reason``, ``killed_ranks``,
            ``killed``; or null
          - ``finished``: ranks that had exited with code 0: ``ranks``, ``count``; or null
          - ``silent``: ranks without a recorded end: ``ranks``, ``count``, ``nodes``; or null
          - ``scheduler``: Slurm's action on the job in it, as text ("preempted"); or null
          - ``recovered``: whether a later round followed its failure
          - ``cost``: if a later round followed: ``until_next_round_s``, ``steps_repeated`` and ``requeued``
            (another attempt, so the time includes Slurm's queue); or null
          - ``accounting``: how its time, and the time until the next round's progress, was spent (defined in
            `ftslurm.report.accounting`): ``took_s``, ``startup_s``, ``productive_s``, ``lost_s``, ``detection_s``,
            ``stopping_s``, ``other_s``, ``restart_s``, ``queue_s``; ``rank_hours_lost``: ranks times lost, detection,
            stopping and restart;
            null for old rounds that were not read

        - ``accounting``: the sums of the known values of the newest ``rounds`` rounds, from ``first_round`` on:
          the same keys, but ``startup_s`` (of the first round only, that of the later ones is in ``restart_s``), and
          ``elapsed_s``; ``ratio``: the effective training time ratio, productive by elapsed; ``unit``: "GPU" if
          each rank has a GPU of its own, else "rank"

        - ``scheduler``: Slurm's view of the newest attempt's job, null if not queried: ``line`` (a summary),
          ``attempt``, ``job_id``, ``asked_ns``, ``source`` ("scontrol" or "sacct"), ``problem`` (reason for no answer),
          ``state``, ``reason``, ``exit_code``, ``signal``, ``restarts``, ``start_ns``, ``end_ns``, ``time_limit_s``,
          ``failed_node``, ``cancelled_by`` (uid), ``nodes`` (lost ones and their states); ``text``: its action on the
          job, and ``verdict`` ("time-limit", "preempted", "cancelled", "scheduler"), null if there was none. Such an
          end is the ``cause`` of a stopped or unfinished run too, then of no rank and no node
        - ``step``: the end of the newest attempt's Slurm step, recorded by ftsrun; no process of the run is left:
          ``attempt``, ``ended_ns``, ``exit_code`` (srun's), ``signal`` (that stopped ftsrun), ``line`` (as text);
          null while a process may be running
        - ``job``: of a job that has no run, made from Slurm's view (``source`` "Slurm"): ``note`` (why there is
          none), ``line`` (Slurm's view), ``output`` (its output file), ``last_lines`` of that; else null
        - ``repeats``: repeated failures, see `ftslurm.report.repeats.repeats`
        - ``health``: the findings of checks (`ftslurm.health`): ``nodes``: number of checked nodes; ``findings``,
          the first failure's node's first, then by severity: ``node``, ``nodes`` (at most 8) and ``node_count`` of
          those with the same, ``check``, ``status`` ("fail" or "warn"), ``subject``, ``text``, ``advice``, ``since_ns``
          (first seen), ``round`` (the newest one whose files contain it; null: only node records do),
          ``of_failure`` (on a node of the first failure), ``relation`` to the first failure of round
          ``focus``, or null: ``before_s`` (negative: after), ``uncertainty_s``, ``text``; ``more``: number of omitted
          findings; ``left_out``: nodes that took no part: ``node``, ``kind`` ("unhealthy", "excluded": excluded
          before the run, "excluded-in-run": excluded in it), ``rounds``, ``why``, ``text``; ``more_left_out``.
          A check that failed on the first failure's node is among its ``evidence_lines``; where it explains a crash,
          a CUDA error or a failure of communication, ``cause`` is "health". If too few nodes were healthy for a
          first round, the run's ``cause`` is "health-check", of no rank
        - ``defects``: defects of ftslurm itself: ``part`` (the disabled component) and ``meaning`` of that for the job,
          both null where it ended the agent; ``error``, ``place`` in ftslurm, ``nodes`` (at most 8), ``node_count``,
          ``round``, ``time_ns``, ``file`` of the record in the run directory
        - ``clocks``: nodes whose clocks are far off the others', their times here corrected: ``node``, ``ahead_s``
        - ``rank``: the requested rank, see `ftslurm.report.ranks.rank_report`; null if none was requested, or
          nothing is recorded about it
        - ``failed``: if requested, all failed ranks of round ``focus``, each as ``first_failure``; else null
        - ``missing``: expected files that are missing in the run directory of a run that did not succeed, as text
        - ``skipped_rounds``: number of old rounds whose files were not read
        - ``problems``: ``file`` and ``reason`` of each unusable file
    """
    state = snapshot.state
    closed = state.closed if state else None
    numbers = {h.round for h in state.history} if state else set()
    ordered = sorted(numbers | {files.number for files in snapshot.rounds})
    rounds = [round_report(snapshot, n, newest=n == ordered[-1]) for n in ordered]
    _link(rounds)
    alive = _alive(snapshot)
    status = closed.outcome if closed else _open_status(snapshot, alive)
    if snapshot.source != "ftslurm":
        status = _of_foreign(rounds)
    explain_rounds(snapshot, rounds)
    cause = _cause(status, rounds)
    started = next((r["started_ns"] for r in rounds if r["started_ns"] is not None), None)
    ended = closed.time_ns if closed else None
    last = ended if ended is not None else (alive["time_ns"] if alive else None)
    focus = _focus(cause, rounds, round_number)
    newest = snapshot.attempt
    attempt = newest.attempt if newest is not None else None
    if cause is None and status in ("stopped", "unfinished"):
        cause = job_failure(snapshot, attempt, rounds[-1] if rounds else None)
    if cause is None and status == "failed":
        cause = refused(snapshot, rounds)
    number = focus if focus is not None else (ordered[-1] if ordered else None)
    report: Dict = {
        "schema": SCHEMA,
        "version": VERSION,
        "made_ns": snapshot.now_ns,
        "summary": "",
        "source": snapshot.source,
        "status": status,
        "exit_code": closed.exit_code if closed else None,
        "reason": closed.reason if closed else None,
        "ended_ns": ended,
        "run": _run(snapshot),
        "started_ns": started,
        "duration_s": None if started is None or last is None else max(0, last - started) / 1e9,
        "last_step": max((r["last_step"] for r in rounds if r["last_step"] is not None), default=None),
        "max_restarts": state.max_restarts if state else None,
        "restarts_used": state.restarts_used if state else None,
        "alive": alive,
        "cause": cause,
        "focus": focus,
        "recovered": [r["round"] for r in rounds if r["recovered"]],
        "interrupted": [r["round"] for r in rounds if r["cost"] is not None and not r["recovered"]],
        "cost": _total(rounds),
        "accounting": account(snapshot, rounds),
        "rounds": rounds,
        "scheduler": scheduler_report(snapshot, attempt),
        "step": step_report(snapshot),
        "job": job_report(snapshot),
        "repeats": repeats(rounds),
        "health": health_report(snapshot, rounds, focus),
        "defects": defects_report(snapshot.defects),
        "clocks": list(far_off(snapshot.clocks)),
        "rank": rank_report(snapshot, number, rank) if rank is not None and number is not None else None,
        "failed": failed_ranks(snapshot, focus) if every and focus is not None else None,
        "missing": missing(snapshot) if status in ("failed", "unfinished") else [],
        "skipped_rounds": snapshot.skipped_rounds,
        "problems": [{"file": p.file, "reason": p.reason} for p in snapshot.problems],
    }
    report["summary"] = summary(report)
    return report


def _run(snapshot: Snapshot) -> Dict:
    run, state = snapshot.run, snapshot.state
    names = list(state.attempts) if state and state.attempts else [a.attempt for a in snapshot.attempts]
    folder = snapshot.directory.rstrip("/").rsplit("/", 1)[-1]
    newest = snapshot.attempt
    return {
        "id": (run.run_id if run else None) or (state.run_id if state else None) or folder,
        "directory": snapshot.directory,
        "user": run.user if run else None,
        "created_ns": run.created_ns if run else None,
        "ftslurm": run.ftslurm if run else None,
        "attempts": names,
        "command": list(newest.command) if newest else [],
    }


def _alive(snapshot: Snapshot) -> Dict | None:
    signs = [(w.time_ns, w.node) for w in snapshot.nodes]
    for files in snapshot.rounds[-1:]:
        signs += [(n.ended_ns if n.ended_ns is not None else n.started_ns, n.node) for n in files.nodes]
    # A clock may be minutes off; a time days ahead comes from a damaged file and proves no activity.
    known = [(t, node) for t, node in signs if t is not None and 0 < t < snapshot.now_ns + _DAY_NS]
    if not known:
        return None
    time_ns, node = max(known)
    return {"time_ns": time_ns, "age_s": max(0, snapshot.now_ns - time_ns) / 1e9, "node": node}


def _open_status(snapshot: Snapshot, alive: Dict | None) -> str:
    ended = step_end(snapshot) is not None
    ended = ended or (bool(snapshot.nodes) and all(w.status == "left" for w in snapshot.nodes))
    return "running" if alive is not None and alive["age_s"] <= ALIVE_S and not ended else "unfinished"


def _of_foreign(rounds: list[Dict]) -> str:
    """Reset the values that output alone cannot prove, and return the status."""
    for entry in rounds:
        if entry["outcome"] == "running":
            entry["outcome"] = "unknown"
    return "failed" if rounds and rounds[-1]["first_failure"] is not None else "unfinished"


def _cause(status: str, rounds: list[Dict]) -> Dict | None:
    if status in ("succeeded", "stopped") or not rounds:
        return None
    if status == "failed":
        failed = (r["first_failure"] for r in reversed(rounds) if r["first_failure"] is not None)
        found: Dict | None = next(failed, None)
        return found
    last: Dict | None = rounds[-1]["first_failure"]
    return last


def _focus(cause: Dict | None, rounds: list[Dict], wanted: int | None) -> int | None:
    if wanted is not None:
        return wanted if any(r["round"] == wanted for r in rounds) else None
    if cause is not None:
        number: int = cause["round"]
        return number
    return next((r["round"] for r in reversed(rounds) if r["first_failure"] is not None), None)


def _link(rounds: list[Dict]) -> None:
    """Fill in what follows from the neighbouring rounds: recovery, its cost, repeated failures."""
    earlier_rounds: dict[str, list[int]] = {}
    for i, this in enumerate(rounds):
        failure = this["first_failure"]
        if failure is not None:
            earlier = earlier_rounds.setdefault(failure["signature"], [])
            failure["same_as_rounds"] = earlier[-20:]
            earlier.append(this["round"])
        if i + 1 < len(rounds) and this["outcome"] != "succeeded":
            this["recovered"] = failure is not None
            this["cost"] = _cost(this, rounds[i + 1])


def _cost(this: Dict, after: Dict) -> Dict:
    failure = this["first_failure"] or {"time_ns": None, "step": None}
    failed_ns = failure["time_ns"] if failure["time_ns"] is not None else this["ended_ns"]
    next_ns = after["started_ns"]
    step = failure["step"] if failure["step"] is not None else this["last_step"]
    resumed = after["first_step"]
    known = failed_ns is not None and next_ns is not None
    return {
        "until_next_round_s": max(0, next_ns - failed_ns) / 1e9 if known else None,
        "steps_repeated": None if step is None or resumed is None else max(0, step - resumed),
        "requeued": this["attempt"] != after["attempt"],
    }


def _total(rounds: list[Dict]) -> Dict:
    costs = [r["cost"] for r in rounds if r["cost"] is not None]
    return {
        "rounds": len(costs),
        "between_rounds_s": sum(c["until_next_round_s"] or 0 for c in costs),
        "steps_repeated": sum(c["steps_repeated"] or 0 for c in costs),
    }
