"""Ends of containers as Kubernetes describes them: `kubectl describe pod`, `kubectl get pod -o yaml` (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.report.logs.end import End, with_code
from ftslurm.report.logs.lines import Line

NEAR, ABOVE = 4, 200
"""Lines around an exit code in which its reason is; above it, in which the pod's name is."""
KILLED = "OOMKilled"
_CODE = re.compile(r"\s+(?:Exit Code:|exitCode:|\"exitCode\":) *(\d{1,3}),?\s*$")
_REASON = re.compile(r"\s+(?:Reason:|reason:|\"reason\":) *\"?(\w{3,40})\"?,?\s*$")
_NAME = re.compile(r"Name: +(\S{1,200})\s*$")


def pod_end(lines: Sequence[Line], i: int) -> End | None:
    """Return the end of a container whose exit code line ``i`` has; None: it has none, or 0."""
    found = _CODE.match(lines[i].text)
    if found is None or found[1] == "0":
        return None
    near = (_REASON.match(line.text) for line in lines[max(0, i - NEAR) : i + NEAR])
    reason = next((each[1] for each in near if each), "")
    if not reason:
        return None
    names = (_NAME.match(line.text) for line in reversed(lines[max(0, i - ABOVE) : i]))
    pod = next((each[1] for each in names if each), None)
    code = int(found[1])
    text = f"{pod or 'a container'}: {reason}, exit code {code}"
    return with_code(End(lines[i].number, "pod", text, node=pod), 128 - code if 128 < code < 160 else code)


__all__ = ["KILLED", "pod_end"]
