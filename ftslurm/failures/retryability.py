"""Whether a worker would fail again in the same way: the part that an agent needs at once (pure).

The complete catalogue (`ftslurm.failures.causes`) is more precise, but it costs time and memory that an agent should
not spend while a round waits to be stopped. What follows from a failure is the same here as by the flags of its row
there: a test compares both for each row's examples.
"""

from __future__ import annotations

from ftslurm.failures.own_code import gave_up_waiting
from ftslurm.failures.reason import EXIT, judged, links, refuses_arguments
from ftslurm.failures.signature import signature
from ftslurm.pattern import pattern
from ftslurm.records.error import HOST, ErrorRecord, ExceptionRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BY_NODE, PERHAPS = "node", "perhaps"
NON_RETRYABLE_S = 600.0
"""Seconds after a worker's start in which an import or syntax error counts as one at start; modules may be on NFS."""

DO_NOT_RESTART = "78"
"""A script's exit code to prevent restarts; see `ftslurm.records.state.EXIT_DO_NOT_REQUEUE`."""

START_S = 60.0
"""Seconds in which any other failure counts as one at start, if no step was reported."""

_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_IMPORT = ("ImportError", "ModuleNotFoundError")
_RUNPY = ("runpy", "_Error")
"""The exception of ``python -m`` for a module that does not exist or cannot be run."""
_NAMED = pattern(
    r"(?i)(?<!dataloader )\b(?:rank|worker|peer)s?\b[ :=#]{0,3}[\[({]?(?P<first>\d{1,6})\b"
    r"(?P<more>(?:(?:, ?| and )\d{1,6}\b)*)"
)
_NUMBER = pattern(r"\d+")
_MESSAGE_LIMIT = 4096
_FROM_OUTSIDE = ("KeyboardInterrupt",)
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")
_HARDWARE = pattern(
    r"uncorrectable (ECC|NVLink) error|fallen off the bus|GPU is lost|GPU access blocked|hardware stack error"
    r"|Invalid access of peer GPU memory over nvlink|[Cc]ontained (memory|ECC) error|CUDA_ERROR_CONTAINED"
    r"|CUDA-capable devices are busy or unavailable|unspecified launch failure|[Uu]ncorrectable memory error"
)
_NODE_ERRNOS = pattern(r"\A\[Errno (5|28|30|107|108|112|113|116|121)\]")
"""EIO, ENOSPC, EROFS, ENOTCONN, ESTALE and similar: errors of devices and mounts."""
_GPU = pattern(r"\bCUDA\b|\bcuda(Error|\w*:)|\bCUDNN_|\bcuBLAS|CUBLAS_|\bHIP (error|runtime)")
_NODES = pattern(
    r"NET/IB ?: ?Got|IBV_WC_|ibv_\w+ failed|HSA_STATUS_ERROR|silent data corruption"
    r"|(hash|checksum|fingerprint)\w*[ -].{0,60}(mis-?match|not match|differ).{0,60}\b(replica|DP ranks"
    r"|data[- ]parallel)"
    r"|(weight|param(eter)?|replica)\w*[ -](hash|checksum)\w* (mis-?match|differ)"
)
"""A fabric's, an accelerator's or a host's own error in a message."""
_OWN = pattern(
    r"out of memory|device-side assert|no kernel image|invalid (configuration|argument|value|device function)"
)
_NODE_SIGNALS = ("SIGBUS", "SIGILL", "SIGSEGV", "SIGABRT", "SIGFPE", "SIGKILL")
WAIT_TIMED_OUT = r"(?:\AOperation timed out!\Z|\bEI000[26]: )"
"""The whole message of torch's `Work.wait`, and HCCL's codes of a rank that waited for another one in vain."""
OTHER_FAILED = (
    r"(?:\b(?:[Aa]n)?[Oo]ther (?:rank|worker|process|task)(?:s|es)? (?:ha[sved]+ )?(?:failed|crashed|died)"
    r"|Collective ops is aborted by: )"
)
"""In the message of a rank that only reports another one's failure."""
_PEERS = pattern(rf"/torch/distributed/|gloo[/:]|TCPStore|ProcessGroup|c10d::|\bNCCL\b|{WAIT_TIMED_OUT}|{OTHER_FAILED}")
_COLLECTIVES = pattern(r"/torch/distributed/distributed_c10d\.py")
_OF_PEERS = ("PeerLostError", "PeerTokenError")
"""What the peer heartbeat raises."""
_UNREACHABLE = pattern(r"Connect(ion)?\w*Error|BrokenPipe|Timeout|MaxRetry|URLError|gaierror|NameResolution")
"""Types of exceptions for a missing answer from outside the program: it may answer next time."""


def retryability(record: ErrorRecord, life_s: float) -> dict[str, Any]:
    """Return the part of a failure's summary about the prospects of a restart.

    Args:
        record: the error record, completed.
        life_s: the worker's lifetime, in seconds.

    Returns:
        "at_start": it failed at start, by itself. "non_retryable": why it would fail again, as text, or None.
        "on_any_node": on any node, because the script or its arguments are wrong, not something missing on a node.
        "blame": BY_NODE: its message names the node's hardware; PERHAPS: the node may be the cause; None: hardly.
        "by_peers": it lost a connection to other ranks, waited for them, aborted in a collective, or names one of them.
        "signature": for comparison with other rounds' failures, see `ftslurm.failures.signature`; or None.
    """
    return {
        **_prospect(record, life_s),
        "blame": blame(record),
        "by_peers": any(map(_by_peers, _chain(record))) or _aborted_in_a_collective(record) or _names_others(record),
        "signature": signature(record),
    }


def blame(record: ErrorRecord) -> str | None:
    """Return whether the node may be the cause of a failure; it is not for a program's own error (a ValueError).

    Broken connections are caused by a peer far more often than by the node. An out-of-memory kill counts if the host's
    memory was exhausted: on a node filled by another job's leftovers it repeats. A kill at the job's own limit would
    happen on any node.
    """
    chain = _chain(record)
    texts = [f"{link.type}: {link.message}" for link in chain]
    if any(map(_HARDWARE.search, [*texts, record.message])):
        return BY_NODE
    if chain:
        return PERHAPS if any(map(_may_be_nodes, chain, texts)) else None
    by_signal = record.signal in _NODE_SIGNALS and not _killed_at_its_own_limit(record)
    return PERHAPS if record.kind in ("spawn", "hang") or by_signal else None


def _chain(record: ErrorRecord) -> list[ExceptionRecord]:
    """Return the recorded exceptions, and those that one of them passed on from another process."""
    raised = judged(record)
    whole = [] if record.exception is None else [*links(record.exception)]
    return whole if raised is None else [*whole, *links(raised)]


def _aborted_in_a_collective(record: ErrorRecord) -> bool:
    """Whether the process aborted where it talked with other ranks: gloo does so when their calls do not match."""
    return record.signal == "SIGABRT" and _COLLECTIVES.search(record.stacks or "") is not None


def other_ranks(message: str, own: int) -> set[int]:
    """Return the ranks that a message names apart from the own one: ``worker 2 disconnected``, ``missing ranks: [1]``.

    A number behind "worker" may be one of a pool of the rank's own processes.
    """
    found = (f"{each['first']}{each['more']}" for each in _NAMED.finditer(message[:_MESSAGE_LIMIT]))
    return {int(number) for text in found for number in _NUMBER.findall(text)} - {own}


def _names_others(record: ErrorRecord) -> bool:
    own = -1 if record.rank is None else record.rank
    return any(other_ranks(link.message, own) for link in _chain(record))


def _killed_at_its_own_limit(record: ErrorRecord) -> bool:
    """Whether it was a kill at a limit of CPU time, or for memory without evidence that the host's was exhausted."""
    resources = record.host_resources
    if record.signal != "SIGKILL" or resources is None:
        return False
    return resources.cpu_limit_s is not None or resources.killed_for not in ("", HOST)


def _may_be_nodes(link: ExceptionRecord, text: str) -> bool:
    errno = _NODE_ERRNOS.search(link.message)
    return bool(errno or _NODES.search(text) or (_GPU.search(text) and not _OWN.search(text)))


def _prospect(record: ErrorRecord, life_s: float) -> dict[str, Any]:
    exception = record.exception
    raised = judged(record)
    if exception is not None and (exception.type, exception.message) == (EXIT, DO_NOT_RESTART):
        # Its exit may not have completed: it may have been stopped while it ended.
        return {"at_start": False, "non_retryable": f"it ended with code {DO_NOT_RESTART}", "on_any_node": True}
    if raised is not None and asks_for_input(raised):
        return {
            "at_start": False,
            "non_retryable": "workers have no stdin (breakpoint() or input())",
            "on_any_node": True,
        }
    if record.step is not None:
        return {"at_start": False, "non_retryable": None, "on_any_node": False}
    non_retryable, on_any_node = _non_retryable(record, raised) if life_s < NON_RETRYABLE_S else (None, False)
    at_start = life_s < START_S and _by_itself(record, raised)
    return {"at_start": at_start, "non_retryable": non_retryable, "on_any_node": on_any_node}


def asks_for_input(exception: ExceptionRecord) -> bool:
    """Return whether input() or breakpoint()'s debugger reached the end of stdin, which is empty for workers."""
    if exception.type == "BdbQuit":
        return True
    return (exception.type, exception.message) == ("EOFError", "EOF when reading a line")


def _non_retryable(record: ErrorRecord, raised: ExceptionRecord | None) -> tuple[str | None, bool]:
    code, text = record.exit_code, record.message
    if raised is None:
        if code == 2 and text.startswith("can't open file "):
            return "the script does not exist", False
        if code in (126, 127) and text.startswith("cannot start "):
            return "the program cannot be started", False
        return None, False
    # A shared object that another process replaced on NFS is there again at the next start.
    imports = raised.type in _IMPORT and not raised.message.endswith("Stale file handle")
    if raised.type in _SYNTAX or imports:
        return f"{raised.type} at start", raised.type in _SYNTAX
    if (raised.module, raised.type) == _RUNPY:
        return "Python cannot run the module", False
    if code == 2 and refuses_arguments(raised):
        return "the script refused its arguments", True
    return None, False


def _by_itself(record: ErrorRecord, raised: ExceptionRecord | None) -> bool:
    """Whether neither a kill from outside nor another rank, a server or the network caused it."""
    if record.signal is not None and record.kind == "signal":
        return record.signal in _CRASHES
    if raised is None or record.exception is None:
        return True
    if raised.type in _FROM_OUTSIDE or unanswered(raised.type):
        return False
    return not any(map(_by_peers, _chain(record)))


def unanswered(name: str) -> bool:
    """Return whether an exception of that type means that something outside the program did not answer or vanished."""
    return _UNREACHABLE.search(name) is not None


def _by_peers(exception: ExceptionRecord) -> bool:
    found = _PEERS.search(exception.inner_file) or _PEERS.search(exception.message)
    named = exception.type.startswith("Dist") or exception.type in _OF_PEERS
    return named or found is not None or gave_up_waiting(exception.type, exception.message, exception.frames)
