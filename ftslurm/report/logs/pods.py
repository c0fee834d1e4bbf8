"""Ends of pods and containers as Kubernetes describes them: `kubectl describe pod`, `get pod -o yaml` (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.pattern import pattern
from ftslurm.report.logs.end import End, of_code
from ftslurm.report.logs.lines import Line

NEAR, ABOVE = 4, 200
"""Lines around an exit code in which its reason is; above it, in which the pod's name is."""
KILLED = "OOMKilled"
_CODE = pattern(r"\s+(?:Exit Code:|exitCode:|\"exitCode\":) *(\d{1,3}),?\s*$")
_REASON = pattern(r"\s+(?:Reason:|reason:|\"reason\":) *\"?(\w{3,40})\"?,?\s*$")
_ENDED = pattern(r"Reason: +(Evicted|Preempt\w{2,10}|NodeLost|DeadlineExceeded|NodeShutdown|Shutdown|Terminated)\s*$")
_EVENT = pattern(
    r"\S{1,20} +Warning +(?P<why>Evicted|Preempted|TaintManagerEviction|NodeNotReady) +[Pp]od/(?P<pod>\S{1,200})"
    r" +(?P<text>\S.{0,400})$"
)
_MESSAGE = pattern(r"Message: +(\S.{0,400})$")
_NOT_STARTED = pattern(
    r"\s+Warning +(?:Failed|FailedMount|FailedScheduling|FailedCreatePodSandBox|InspectFailed|ErrImageNeverPull)\s"
    r".{0,60}?\s(?:kubelet|\S{0,40}scheduler)\S{0,80}\s+(\S.{7,600})$"
)
_FAILED = pattern(r"\s*(?:- )?\"?type\"?: \"?Failed\"?,?\s*$")
_FIELD = pattern(r"\s*(?:- )?\"?(message|reason|status)\"?: \"?(.{1,2000}?)\"?,?\s*$")
_STARTED = pattern(r"\s+Normal +Started\s")
_NAME = pattern(r"Name: +(\S{1,200})\s*$")


def evicted(lines: Sequence[Line], i: int) -> End | None:
    """Return the end of a pod of which line ``i`` states why Kubernetes ended it; None: the line states no such.

    Of `kubectl describe pod`, and of `kubectl get events`.
    """
    event = _EVENT.match(lines[i].text)
    if event is not None:
        return End(
            lines[i].number, "pod", f"Kubernetes ended the pod: {event['why']}: {event['text']}", node=event["pod"]
        )
    found = _ENDED.match(lines[i].text)
    if found is None:
        return None
    why = next((each[1] for line in lines[i + 1 : i + NEAR] if (each := _MESSAGE.match(line.text))), "")
    text = f"Kubernetes ended the pod: {found[1]}{f': {why}' if why else ''}"
    return End(lines[i].number, "pod", text, node=_name(lines, i))


def not_started(lines: Sequence[Line]) -> tuple[Line, str] | None:
    """Return the longest of the events by which a pod's container could not start; None: none, or it started later.

    Its line has the pod as its node.
    """
    failed = [(i, found[1].strip()) for i, line in enumerate(lines) if (found := _NOT_STARTED.match(line.text))]
    if not failed or any(_STARTED.match(line.text) for line in lines[failed[-1][0] :]):
        return None
    at, text = max(failed, key=lambda each: len(each[1]))
    return lines[at]._replace(node=lines[at].node or _name(lines, at)), text


def failed_condition(lines: Sequence[Line]) -> tuple[Line, str] | None:
    """Return why an operator's job is in the condition Failed, by ``kubectl get -o yaml``; None: it is not."""
    for i, line in enumerate(lines):
        block = lines[max(0, i - 2 * NEAR) : i]
        if _FAILED.match(line.text) is None or not any("lastTransitionTime" in each.text for each in block):
            continue
        near = (_FIELD.match(each.text) for each in lines[max(0, i - NEAR - 1) : i + 1])
        fields = {found[1]: found[2] for found in near if found is not None}
        if fields.get("status", "True") == "True" and "message" in fields:
            reason = f" ({fields['reason']})" if "reason" in fields else ""
            return line, f"{fields['message']}{reason}"
    return None


def _name(lines: Sequence[Line], i: int) -> str | None:
    names = (_NAME.match(line.text) for line in reversed(lines[max(0, i - ABOVE) : i]))
    return next((each[1] for each in names if each), None)


def pod_end(lines: Sequence[Line], i: int) -> End | None:
    """Return the end of a container whose exit code line ``i`` has; None: it has none, or 0."""
    found = _CODE.match(lines[i].text)
    if found is None or found[1] == "0":
        return None
    # The nearest one: above it, the container's present state may have a reason of its own.
    around = sorted(range(max(0, i - NEAR), min(len(lines), i + NEAR)), key=lambda at: abs(at - i))
    near = (_REASON.match(lines[at].text) for at in around)
    reason = next((each[1] for each in near if each), "")
    if not reason:
        return None
    pod = _name(lines, i)
    code = int(found[1])
    text = f"{pod or 'a container'}: {reason}, exit code {code}"
    return of_code(End(lines[i].number, "pod", text, node=pod), code)
