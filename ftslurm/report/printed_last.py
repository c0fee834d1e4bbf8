"""What a rank printed last, quoted beside an end, or a hang, that has no reason by itself (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.pattern import pattern
from ftslurm.report.facts import LogTail, RoundFiles
from ftslurm.report.failed_worker import NO_END, FailedWorker
from ftslurm.report.reported_before import OUTPUTS, output_before
from ftslurm.text import cut_middle

LINE_LIMIT = 160
_OF_PEERS = pattern(r"Connection (?:closed|reset) by peer|gloo/|ProcessGroup|\bNCCL\b")
_UNSPECIFIC = ("abort", "interrupt", "dataloader-timeout")
"""Causes whose messages are the same whatever led to them."""


def output_end(files: RoundFiles, rank: int, then: int | None = None, *, of_trouble: bool = False) -> tuple[str, ...]:
    """Return the last line of a rank's stderr, else of its stdout, as a sentence; empty: there is none.

    Args:
        files: the round.
        rank: the rank.
        then: see `output_before`.
        of_trouble: whether only a line counts that reports a failure, and that no other rank has.
    """
    for stream in OUTPUTS:
        text = output_before(files, rank, then, stream)
        last = _last_of_stderr(text) if stream == "stderr" else _last_of_stdout(text)
        if last and of_trouble:
            from ftslurm.failures.lines_above import NO_TROUBLE, TROUBLE

            others = (tail for other, tails in files.tails.items() if other != rank for tail in tails)
            own = TROUBLE.search(last) is not None and not (_OF_PEERS.search(last) or NO_TROUBLE.search(last))
            last = last if own and not any(last in tail.text for tail in others) else ""
        if last:
            return (f'the {stream} of rank {rank} ends with "{cut_middle(last, LINE_LIMIT)}"',)
    return ()


def _last_of_stderr(text: str) -> str:
    # A line that is indented continues a warning.
    ends = (line.rstrip() for line in reversed(text.splitlines()) if line.strip() and not line[0].isspace())
    return next((line for line in ends if "Warning: " not in line), "")


def _last_of_stdout(text: str) -> str:
    if not text.strip():
        return ""
    from ftslurm.failures.closing_lines import last_line

    return last_line(text)


def last_output(worker: FailedWorker, tails: Sequence[LogTail], survived: Sequence[str]) -> list[str]:
    """Return what a rank printed last, if neither its end nor its output has a reason; empty: nothing that helps.

    Args:
        survived: the ends of the stderr of ranks that did not fail, or had gone on.
    """
    # What a log states of an end that it has no code of is a reason.
    stated = worker.cause.name == "exit" and worker.exit_code is None and worker.what not in ("", NO_END)
    stated = stated or (worker.cause.name == "abort" and ": " in worker.what)
    quoted = stated or {"stderr", "output"} & set(worker.evidence)
    if quoted or not (worker.cause.silent or worker.cause.name in _UNSPECIFIC):
        return []
    from ftslurm.failures.closing_lines import last_line, without_last

    outputs = [tail for tail in tails if tail.stream in ("stderr", "stdout") and tail.text.strip()]
    for tail in sorted(outputs, key=lambda tail: -(tail.written_ns or 0)):
        text = tail.text
        line = last_line(text)
        while line and any(line in other for other in survived):
            # Others have printed that, too, as a script's handlers do at each end.
            text = without_last(text, line)
            line = last_line(text)
        if line and line not in worker.what:
            return [f'its {tail.stream} ends with "{cut_middle(line, LINE_LIMIT)}"']
    return []
