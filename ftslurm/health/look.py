"""`python -m ftslurm.health.look`: one look at this node for its agent, in a process that may hang or crash alone.

Standard input is the request, one JSON object: {"set", "context", "facts": a file with the facts of the look before,
which is written anew}. Standard output is the result: {"verdicts", "stuck", "took_s"}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import replace
from ftslurm.health import nvml
from ftslurm.health.catalog import all_checks, chosen
from ftslurm.health.check import SETS, Check, Context
from ftslurm.health.result import Looked, encode
from ftslurm.health.run import run
from ftslurm.health.verdict import FAIL, Json
from ftslurm.kernel import become_subreaper, descendants, die_with_parent, kill_descendants

KILL_S = 0.3


def main() -> int:
    """Look once."""
    # Killed with its agent: this is no orphan that could live on.
    die_with_parent()
    # What a check starts and leaves behind comes here.
    become_subreaper()
    request = json.load(sys.stdin)
    context = Context.of_json(request["context"])
    if request["set"] not in SETS:
        raise ValueError(f"unknown set of checks {request['set']!r}")
    before = read_facts(request["facts"])
    nvml.preload()
    checks = chosen(all_checks(), request["set"], context.skip)
    looked = run(checks, context, before)
    write_facts(request["facts"], facts_to_keep(checks, before, looked))
    sys.stdout.write(encode(replace(looked, stuck=leave_nothing())))
    sys.stdout.flush()
    return 0


def leave_nothing() -> tuple[int, ...]:
    """Kill what the checks left behind; return the pids of what hangs in the kernel and cannot be killed at once."""
    end = time.monotonic() + KILL_S
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return ()
        if not kill_descendants(os.getpid()) or time.monotonic() >= end:
            return tuple(pid for pid, _ in descendants(os.getpid()))
        time.sleep(0.005)


def facts_to_keep(checks: Sequence[Check], before: Mapping[str, Json], looked: Looked) -> dict[str, Json]:
    """Return the facts that the next look is compared with: the new ones, but for what `Check.lasting` keeps."""
    lasting = {check.name for check in checks if check.lasting}
    kept = dict(before)
    for one in looked.verdicts:
        stays = one.status == FAIL and one.check in lasting and one.check in before
        if one.facts is not None and not stays:
            kept[one.check] = one.facts
    return kept


def read_facts(path: str) -> dict[str, Json]:
    """Return the facts of the look before, by check; none where there was none."""
    try:
        with open(path, "rb") as file:
            facts = json.load(file)
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def write_facts(path: str, facts: dict[str, Json]) -> None:
    """Keep facts for the next look; a disk that is full costs growth, no more."""
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w") as file:
            json.dump(facts, file)
        os.replace(temporary, path)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
