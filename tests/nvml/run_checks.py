"""Runs health checks as the agent does, in a process without threads; what to run comes as JSON on standard input."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict, replace

from ftslurm.health.catalog import builtin, chosen
from ftslurm.health.check import SETS, Context
from ftslurm.health.run import run

request = json.load(sys.stdin)
checks = builtin()
if request["checks"] in SETS:
    checks = [check for check in chosen(checks, request["checks"]) if check.name.startswith(("gpu-", "amd-"))]
else:
    checks = [check for check in checks if check.name in request["checks"]]
if request["limit_s"] is not None:
    checks = [replace(check, limit_s=request["limit_s"]) for check in checks]
context = Context(node="n17", **{"environ": {}, **request["context"]})
began = [resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
done = run(checks, context, request["before"])
ended = [resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
cpu_s = sum(
    later.ru_utime + later.ru_stime - sooner.ru_utime - sooner.ru_stime
    for later, sooner in zip(ended, began, strict=True)
)
result = {
    "took_s": done.took_s,
    "cpu_s": cpu_s,
    "stuck": done.stuck,
    "verdicts": [asdict(verdict) for verdict in done.verdicts],
}
json.dump(result, sys.stdout)
