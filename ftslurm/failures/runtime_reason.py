"""The reason in the middle of a long message of a runtime, such as torch's sockets and compilers, or Ray (pure)."""

from __future__ import annotations

import re

from ftslurm.pattern import pattern
from ftslurm.text import duration

_GAUDI = pattern(r"(?P<text>[A-Z][\w ]{4,60} failed\. synStatus[^\n]{1,100})")
# Of inductor's compiler of C++.
_BUILT = pattern(
    r"(?m)^(?:\S{0,300}/)?(?P<text>[^\s/]{1,100}: (?:.{0,60}error: |cannot find |undefined reference).{1,200})$"
)
_EXPLANATION = pattern(r"(?P<what>[^\n]{1,200})\n {2}Explanation: (?P<text>[^\n]{1,300})")  # of torch's compiler
# Of Ray.
_ACTOR = pattern(r"(?P<text>The actor is dead because [^.\n]{1,200}\.(?: Worker exit type: (?P<type>\w+))?)")
_NAMED = pattern(r"^\s+(pid|name|ip): (\S{1,200})$", re.MULTILINE)
_RAY_MEMORY = pattern(
    r"Memory on the node \(IP: (?P<ip>[^,)\s]{1,60}).{0,300}?\bpid=(?P<pid>\d+)[^)]{0,80}?\) was running was"
    r" (?P<use>[\d.]+ ?GB / [\d.]+ ?GB)"
)
# Of torch with TORCH_DISTRIBUTED_DEBUG=DETAIL: the second one may be cut off.
_FINGERPRINT = (
    r"Rank (?P<rank{0}>\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<number{0}>\d+),? ?)?"
    r"OpType=(?P<name{0}>\w+)(?:, TensorShape=(?P<shape{0}>\[[^\]]{{0,60}}\]))?"
)
# Of torch before 2.4: a line for each family of addresses.
_BOUND = pattern(
    r"The server socket has failed to (?:bind to \S{1,60}?:(?P<port>\d{1,5}) \(errno: 98\b"
    r"|listen on any local network address\. port: (?P<listened>\d{1,5}), .{0,60}EADDRINUSE)"
)
_UNREACHED = pattern(
    r"The client socket has (?:failed to connect to any network address of|timed out after (?P<limit>\d{1,9} ?\w{1,20})"
    r" while trying to connect to) \((?P<host>[^,\s()]{1,200}), (?P<port>\d{1,5})\)"
)
_WHY = pattern(r"\((?:errno|gai error): -?\d{1,5} - (?P<why>[^()]{1,100})\)")
# Of TensorFlow, behind the places that built the node.
_GRAPH = pattern(
    r"\AGraph execution error:\s+(?:Detected at node [^\0]{0,20000}(?:\nNode: .{0,300}|<stack traces unavailable>)\n"
    r"|Detected at node .{0,300}\n)?"
    r"(?:\d{1,4} root error\(s\) found\.\s+\(0\) )?(?P<text>.{1,400}?)(?: by allocator \S{1,60})?$",
    re.MULTILINE,
)
# Of urllib3: the reason stands behind the whole address.
_POOL = pattern(
    r"\A(?:\(MaxRetryError\([\"'])?HTTPS?ConnectionPool\(host='(?P<host>[^']{1,200})', port=(?P<port>\d{1,5})\): "
    r"Max retries exceeded with url: "
    r"\S+ \(Caused by \w{1,60}\([\"']?(?:<[^>]{1,200}>(?:: |, [\"']))?(?P<why>[A-Z][a-z]+ [^\n]{1,400}?)[\"']\)\)"
)
# Of XLA's coordination service: which tasks came, and which did not.
_BARRIER = pattern(
    r"\A(?P<what>(?:[A-Z_]{3,40}: )?Barrier timed out\. Id: \S{1,200}?)\.? [^\0]{0,600}?"
    r"# of tasks that reached the barrier: (?P<came>\d{1,9}/\d{1,9})"
    r"[^\0]{0,600}?task names:\s+(?P<missing>[^\n]{1,300})"
)
_TASK_NAME = pattern(r"/job:\S{1,80}/task:(\d{1,9})")
_MISMATCH = pattern(
    rf"Detected mismatch between collectives on ranks?\. {_FINGERPRINT.format(1)}"
    rf"(?:.{{0,2000}}?, but {_FINGERPRINT.format(2)})?",
    re.DOTALL,
)
_DEVICE = pattern(r" and type \w{1,20} on (/job:\w{1,60})/replica:0")


def runtime_reason(text: str) -> str:
    """Return the reason from the middle of a long message of a runtime; empty: it is none of these."""
    bound = _BOUND.search(text)
    if bound is not None:
        return f"port {bound['port'] or bound['listened']} is in use (EADDRINUSE)"
    if unreached := _UNREACHED.search(text):
        return _no_connection(text, unreached)
    if graph := _GRAPH.match(text):
        return _DEVICE.sub(r" on \1", graph["text"].strip())
    if pool := _POOL.match(text):
        return f"{pool['host']}:{pool['port']}: {pool['why']}"
    if barrier := _BARRIER.match(text):
        missing = _TASK_NAME.sub(r"task \1", barrier["missing"].strip())
        return f"{barrier['what']}: {barrier['came']} tasks came, not {missing}"
    gaudi = _GAUDI.search(text)
    built = _BUILT.search(text) if "\nOutput:\n" in text else None
    traced = _EXPLANATION.match(text)
    if traced is not None:
        return f"{traced['what']}: {traced['text']}"
    if actor := _ACTOR.search(text):
        return _of_actor(text, actor)
    if memory := _RAY_MEMORY.search(text):
        return f"Ray killed pid {memory['pid']} on {memory['ip']}: its node ran low on memory ({memory['use']})"
    found = gaudi or built
    return found["text"] if found is not None else _mismatch(text)


def _no_connection(text: str, unreached: re.Match[str]) -> str:
    """Return to which address torch's client found no way, and why: ``no connection to n1:29500: No route to host``."""
    *_, why = ["", *(each["why"] for each in _WHY.finditer(text))]
    address = f"{unreached['host']}:{unreached['port']}"
    within = f" within {_duration(unreached['limit'])}" if unreached["limit"] else ""
    return f"no connection to {address}{within}{f': {why}' if why else ''}"


def _duration(text: str) -> str:
    """Return a time-out in our own units: ``600000ms`` as ``10 min``."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    seconds = {"ms": 0.001, "s": 1.0, "seconds": 1.0}.get(text[len(number) :].strip())
    return text if seconds is None else duration(int(number) * seconds)


def _of_actor(text: str, actor: re.Match[str]) -> str:
    """Return which actor of Ray died, and how: ``Worker_0:1 (pid 77 on 10.0.0.5) died: SYSTEM_ERROR``."""
    named = dict(_NAMED.findall(text[: actor.start()]))
    if "pid" not in named:
        return actor["text"]
    where = f" on {named['ip']}" if "ip" in named else ""
    how = f": {actor['type']}" if actor["type"] else ""
    how = " with its node" if "its node has died" in actor["text"] else how
    return f"{named.get('name', 'an actor')} (pid {named['pid']}{where}) died{how}"


def _mismatch(text: str) -> str:
    """Return what each of two ranks called, of the message on collectives that do not match; empty: it is none."""
    found = _MISMATCH.search(text)
    if found is None:
        return ""
    calls: list[str] = []
    for i in (1, 2):
        if found[f"rank{i}"]:
            number, shape = found[f"number{i}"], found[f"shape{i}"]
            call = f"{found[f'name{i}']}{f' #{number}' if number else ''}{f' {shape}' if shape else ''}"
            calls.append(f"rank {found[f'rank{i}']} calls {call}")
    return ", but ".join(calls)
