"""Ends of ranks that launchers of MPI state: Intel MPI's, MPICH's, Open MPI's, Horovod's, HPE's and Cray's (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftslurm.dataclasses import replace
from ftslurm.pattern import pattern
from ftslurm.report.logs.end import SIGNALS, End, of_code, with_code
from ftslurm.report.logs.lines import Line

_NOTICED = pattern(
    r"noticed that process rank (?P<rank>\d{1,6}) with PID \d+ on node (?P<node>[\w.-]+) "
    r"exited on +signal (?P<signal>\d+)"
)
_OPEN_MPI = pattern(r" *Process name: (?:\[\S+?,\d+\],)?(?P<rank>\d{1,6})\]?$")  # and horovodrun
_OPEN_MPI_END = pattern(r" *Exit code: +(?P<code>\d{1,3})")
_ABORT = pattern(r"MPI_ABORT was invoked on rank (?P<rank>\d{1,6}) ")
_ABORT_CODE = pattern(r" *with errorcode (?P<errorcode>-?\d{1,12})")
_LARGEST = 127
"""Of what a program gives to MPI_Abort; a larger number, or a negative one, is no exit code, nor a signal."""
_HYDRA = pattern(r"= +(?:RANK (?P<rank>\d{1,6}) )?PID (?P<pid>\d+) RUNNING AT (?P<node>[\w.@-]+)")
_HYDRA_BEGIN = pattern(r"= +BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")
_HYDRA_SIGNAL = pattern(r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .{1,40} \(signal (?P<signal>\d{1,2})\)")
_HYDRA_END = pattern(r"= +KILLED BY SIGNAL: (?P<signal>\d+)|= +EXIT (?:STATUS|CODE): (?P<code>\d+)")
# MPICH calls the number of a rank among all that of a node.
_MPICH_ABORT = pattern(r"Abort\((?P<code>\d{1,9})\) on node (?P<rank>\d{1,6}) \(rank \d{1,6} in comm -?\d{1,9}\): ")
# Of HPE's MPT.
_MPT = pattern(
    r"MPT(?: ERROR)?: Rank (?P<rank>\d{1,6})\(g:\d{1,6}\) (?:is aborting with error code (?P<errorcode>-?\d{1,12})"
    r"|received signal SIG\w{2,8}\((?P<signal>\d{1,2})\))"
)
_MPT_HOST = pattern(r"\s*Process ID: \d{1,10}, Host: (?P<node>[\w.-]{1,80}),")
# Of Cray's ALPS.
_ALPS = pattern(
    r"\[NID (?P<node>\d{1,6})\].{0,80} PE RANK (?P<rank>\d{1,6}) (?:exit signal (?P<name>\w[\w ]{3,30}\w)"
    r"|exit(?:ed with)? code (?P<code>\d{1,3}))"
)


class MpiBoxes:
    """Reads the boxes by which a launcher ends, line by line."""

    def __init__(self) -> None:
        self._box: tuple[int | None, str | None, int | None] | None = None  # rank, node, pid

    def read(self, line: Line, known: list[End]) -> None:
        """Read a line; add the end that it completes to those known, or correct the last of them."""
        if _HYDRA_BEGIN.match(line.text):
            self._box = None, None, None
        elif found := _HYDRA.match(line.text):
            rank = int(found["rank"]) if found["rank"] else None
            self._box = rank, found["node"].rpartition("@")[2], int(found["pid"])
        elif (found := _HYDRA_SIGNAL.match(line.text)) and known and known[-1].by == "mpirun":
            # It says how to read the code above.
            last = known[-1]
            if last.code in (int(found["signal"]), 128 + int(found["signal"])):
                known[-1] = with_code(replace(last, code=None), -int(found["signal"]))
        elif found := _OPEN_MPI.match(line.text) or _ABORT.match(line.text):
            self._box = int(found["rank"]), None, None
        elif self._box is not None and (found := _end_of_box(line.text)):
            known.append(_of_box(line, found.groupdict(), *self._box))
            self._box = None


def by_mpi(line: Line, after: str) -> End | None:
    """Return the end that a launcher or a library of MPI states in a line; ``after``: the next one, which may go on."""
    text = line.text
    if "called MPI_Abort" in text and (found := _MPICH_ABORT.match(text)):
        return _aborted(line, found["code"], int(found["rank"]))
    if "noticed that process rank" in text and (found := _NOTICED.search(f"{text} {after}")):
        return with_code(_end(line, int(found["rank"]), found["node"]), -int(found["signal"]))
    if text.startswith("MPT") and (found := _MPT.match(text)):
        host, rank = _MPT_HOST.match(after), int(found["rank"])
        node = host["node"] if host is not None else None
        if found["signal"]:
            return with_code(_end(line, rank, node), -int(found["signal"]))
        return _aborted(line, found["errorcode"], rank, node)
    if "PE RANK" in text and (found := _ALPS.search(text)):
        end, name = _end(line, int(found["rank"]), f"nid{found['node']}"), found["name"]
        if name is None:
            return of_code(end, int(found["code"]))
        # ALPS ends the other ranks by SIGTERM.
        return replace(end, signal=SIGNALS.get(name, name), stopped=name == "Terminated")
    return None


def _of_box(line: Line, found: Mapping[str, str | None], rank: int | None, node: str | None, pid: int | None) -> End:
    if (aborted := found.get("errorcode")) is not None:
        return _aborted(line, aborted, rank, node, pid)
    signalled, code = found.get("signal"), found.get("code")
    end = _end(line, rank, node, pid)
    return with_code(end, -int(signalled)) if signalled else of_code(end, int(code or 1))


def _end(line: Line, rank: int | None, node: str | None, pid: int | None = None) -> End:
    return End(line.number, "mpirun", line.text, rank=rank, node=node, pid=pid)


def _aborted(line: Line, code: str, rank: int | None, node: str | None = None, pid: int | None = None) -> End:
    end = End(line.number, "abort", f"called MPI_Abort with errorcode {code}", rank, node=node, pid=pid)
    return replace(end, by="mpirun", code=int(code)) if 0 < int(code) <= _LARGEST else end


def _end_of_box(text: str) -> re.Match[str] | None:
    return _HYDRA_END.match(text) or _OPEN_MPI_END.match(text) or _ABORT_CODE.match(text)
