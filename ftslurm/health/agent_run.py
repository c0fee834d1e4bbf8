"""One run of a check set for the agent, in a process that may hang or crash: forked, or `python -m` this module.

The request is one JSON object: {"set", "names": of the checks, if the set is CONFIRM, "context", "facts": a file with
the facts of the previous run, which is rewritten}. It answers by lines of JSON: {"longest_s"}: the checks begin, with
their longest duration; {"waiting"}: names of those without a result after `SLOW_S`; finally the result, see
`ftslurm.health.result`. As a program it reads standard input and writes to standard output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import replace
from ftslurm.health.catalog import all_checks, chosen
from ftslurm.health.check import CONFIRM, SETS, Check, Context
from ftslurm.health.children import send_bytes
from ftslurm.health.result import RunResult, encode
from ftslurm.health.run import longest_s, run, run_unhurried
from ftslurm.health.verdict import Json
from ftslurm.kernel import become_subreaper, die_with_parent, end_descendants
from ftslurm.records.health import FAIL

KILL_S = 0.3
SLOW_S = 5.0
"""Seconds after which the pending checks are reported."""


def main() -> int:
    """Run the set once."""
    run_set(json.load(sys.stdin), 1)
    return 0


def run_set(request: Json, out: int) -> None:
    """Run the set once, and answer on `out`."""
    # Killed with its agent: it must not survive as an orphan.
    die_with_parent()
    # Orphaned children of checks are reparented to this process.
    become_subreaper()
    context = Context.of_json(request["context"])
    before = read_facts(request["facts"])
    confirm = request["set"] == CONFIRM
    if confirm:
        checks = [check for check in all_checks() if check.name in request["names"]]
    elif request["set"] in SETS:
        checks = chosen(all_checks(), request["set"], context.skip)
    else:
        raise ValueError(f"unknown set of checks {request['set']!r}")
    _answer(out, {"longest_s": longest_s(checks, unhurried=confirm)})
    if confirm:
        result = run_unhurried(checks, context, before)
    else:
        result = run(checks, context, before, slow=lambda names: _answer(out, {"waiting": names}), slow_s=SLOW_S)
    write_facts(request["facts"], facts_to_keep(checks, before, result))
    send_bytes(out, encode(replace(result, stuck=end_descendants(KILL_S))).encode("utf-8", "backslashreplace"))


def _answer(out: int, message: Json) -> None:
    send_bytes(out, json.dumps(message).encode() + b"\n")


def facts_to_keep(checks: Sequence[Check], before: Mapping[str, Json], result: RunResult) -> dict[str, Json]:
    """Return the facts for comparison in the next run: the new ones, except those kept for `Check.lasting`."""
    lasting = {check.name for check in checks if check.lasting}
    kept = dict(before)
    for one in result.verdicts:
        stays = one.status == FAIL and one.check in lasting and one.check in before
        if one.facts is not None and not stays:
            kept[one.check] = one.facts
    return kept


def read_facts(path: str) -> dict[str, Json]:
    """Return the facts of the previous run, by check; empty without one."""
    try:
        with open(path, "rb") as file:
            facts = json.load(file)
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def write_facts(path: str, facts: dict[str, Json]) -> None:
    """Store facts for the next run; on a full disk only the detection of growth is lost."""
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w") as file:
            json.dump(facts, file)
        os.replace(temporary, path)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
