"""Runs health checks as the agent does, in a process without threads; what to run comes as JSON on standard input."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict, replace

from ftslurm.health.catalog import builtin, chosen
from ftslurm.health.check import SETS, Context
from ftslurm.health.run import run

asked = json.load(sys.stdin)
checks = builtin()
if asked["checks"] in SETS:
    checks = [check for check in chosen(checks, asked["checks"]) if check.name.startswith(("gpu-", "amd-"))]
else:
    checks = [check for check in checks if check.name in asked["checks"]]
if asked["limit_s"] is not None:
    checks = [replace(check, limit_s=asked["limit_s"]) for check in checks]
context = Context(node="n17", **{"environ": {}, **asked["context"]})
began = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
looked = run(checks, context, asked["before"])
ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
cpu_s = sum(
    later.ru_utime + later.ru_stime - sooner.ru_utime - sooner.ru_stime
    for later, sooner in zip(ended, began, strict=True)
)
told = {
    "took_s": looked.took_s,
    "cpu_s": cpu_s,
    "stuck": looked.stuck,
    "verdicts": [asdict(verdict) for verdict in looked.verdicts],
}
json.dump(told, sys.stdout)
