"""The message of an exception in a program's output: which of the lines below its type belong to it (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.failures.exception_line import HEADER, LINE_LIMIT, is_relation, own_text, passed_on
from ftslurm.pattern import pattern

MESSAGE_LINES, RANKS_LINES = 60, 20_000
# The line before a traceback that belongs to the message of the exception above it.
_INTRODUCES = pattern(
    r"(with the following error|with message|The last \d+ lines of \S+ #*"
    r"|\[Rank \d+ Error Snippet\]:|-- Process \d+ terminated|Original [Tt]raceback|\"\"\""
    r"|'''|[Rr]emote [Tt]raceback|from user code:)"
    r"[^\n]{0,20}$"
)
# A first line of a message whose reason is in its further lines.
_SEVERAL = pattern(
    r":\s*$|NCCL error|CUDA error|HIP error|DataLoader|pin memory thread|raised:|Error\(s\) in loading|\[enforce fail|"
    r"The actor died|node running low on memory|ranks:dict_keys|ncclResult|task names|Barrier timed out"
    r"|following|HCCL error|An error occurred while calling|OPS function error|set up runtime environment"
    r"|NPU (?:function )?error"
)
_ALSO = pattern(
    r"\s+\S|nccl[A-Z]\w+:|Last error|CUDA kernel errors|For debugging consider|Compile with|Search for `cuda|"
    r"Exception raised from|frame #\d|Device-side assert|Set TORCH|You can suppress|Expected|Got|-- Process |"
    r"/job:|# of tasks that|The first task at|/\S{1,400}: \S"
    r"|: \w+\.|org\.apache\.|The actor is dead|Memory on the node|\[Rank \d+ Error|\[ERROR\] \d{4}-"
    r"|Failed to install |ERROR: |E[A-Z]\d{4}: |\[rank\d+\]"
    r"|(socket|bootstrap|Net|Call to|Connection"
    r"|Cuda failure|Error)\b"
)
_TEXT = pattern(r"(?!Traceback|Exception|During|The above)[A-Za-z]+ [a-z]")
_OF_SPAWN = pattern(r"-- Process \d+ terminated with the following error")
# Of torch's checkpoints: the tracebacks of all ranks, one after the other.
_BY_RANKS = pattern(r"ranks:dict_keys")
# Of pydantic: each field, and below it what is wrong with it.
_FIELDS, _FIELD = pattern(r"\A\d+ validation errors? for "), pattern(r"[\w.\[\]-]{1,200}")
# Of torch's compiler, whose message has several paragraphs.
_GRAPH_BREAK, _DETAIL = pattern(r" {2}Explanation: "), pattern(r" {1,2}\S")
# Of a logger, a warning, an interpreter or library at its end: never a message's further line.
_RECORD = pattern(
    r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d|\S{1,400}:\d+: \w*Warning: |sys:1: |Exception ignored |wandb: "
    r"|\[\d{1,4}\]:$| {0,6}(?:time|host|rank) {2,6}: "
    r"|srun: (?:error: \S{1,300}: tasks? [\d,-]+: |Terminating |Force |Job step )|slurmstepd: "
    r"|Set the environment variable HYDRA_"
    r"|\[[WI]\d{4} |(?i:job|run) (?:finished|ended) at "
)
# Each introduces the next line, the second in place of what is not there.
_OPEN_ENDS = (":", "<stack traces unavailable>")
TORCH_SCRIPT = "The following operation failed in the TorchScript interpreter."
"""Its traceback, with the source, and the error follow."""
OF_TORCH_SCRIPT = pattern(
    r"(?m)^(?P<type>[A-Za-z_.]{3,80}(?:Error|Exception)): (?P<message>(?!The following operation failed)\S.*)"
)
RELATION_LINES, PROSE_LINES = 8, 6
_PROSE = pattern(
    r"(?!Traceback|During handling|The above|srun|slurm|INFO|WARN|ERROR|Epoch|Step)"
    r"\s*(?:[A-Z][a-z]+|[a-z]{1,20}) [A-Za-z(]"
)


def message_below(lines: Sequence[str], at: int, prefix: str, first: str, *, whole: bool) -> tuple[int, str]:
    """Return the line after an exception's message, and the message.

    Args:
        at: the line of its type.
        first: its first line.
    """
    kept = [first]
    begun_below = not first and lines[at].rstrip().endswith(":")  # the message begins with a line end
    at += 1
    nested = False
    while at < len(lines):
        if len(kept) >= (RANKS_LINES if nested and _BY_RANKS.search(first) else MESSAGE_LINES):
            break
        own = own_text(lines[at][:LINE_LIMIT], prefix)
        if own is None or (prefix and own.startswith(("+-", "+ "))) or _RECORD.match(own):
            break
        if HEADER in own or is_relation(own):
            if not _passes_traceback_on(kept, own, nested=nested):
                break
            nested = True
        elif nested:
            # A blank line ends the other process's message, unless its chain goes on below.
            ends = not whole and not own.strip() and len(kept) > 1 and not kept[-1].startswith(" ")
            if ends and not any(map(is_relation, [kept[-1], *lines[at : at + RELATION_LINES]])):
                break
        elif not (whole or prefix or (begun_below and len(kept) <= PROSE_LINES and _PROSE.match(own))):
            further = lines[at + 1][:LINE_LIMIT] if at + 1 < len(lines) else ""
            if not own.strip() and first.endswith(":") and len(kept) == 1 and _TEXT.match(further):
                # A message in two paragraphs, of which the first one only introduces the second.
                at, own = at + 1, further
            elif not _is_further(kept, own, further):
                break
        kept.append(own.rstrip())
        at += 1
    return at, "\n".join(_limited(kept)).strip()


def _limited(kept: list[str]) -> list[str]:
    """Return a message within the limit, without quotes at its end; of the tracebacks of all ranks, whole ones."""
    end = min(len(kept), MESSAGE_LINES)
    if len(kept) > MESSAGE_LINES:
        end = max((i for i in range(2, end + 1) if HEADER in kept[i]), default=end)
    while end > 1 and kept[end - 1].strip() in ("", '"""', "'''"):
        end -= 1
    return kept[:end]


def _passes_traceback_on(kept: Sequence[str], line: str, *, nested: bool) -> bool:
    """Return whether a header, or a line between two exceptions, belongs to a message that has another's traceback."""
    if is_relation(line):
        return nested and _OF_SPAWN.search("\n".join(kept)) is not None
    chained = nested and any(map(is_relation, kept[-2:]))
    introduced = _INTRODUCES.search(kept[-1].rstrip() or " ") is not None
    of_rank = "(RANK " in line and _BY_RANKS.search(kept[0]) is not None
    return chained or introduced or of_rank or "Original " in line or "PythonException: " in line


def _is_further(kept: Sequence[str], line: str, further: str) -> bool:
    """Return whether a line below a message in an output is its next one; ``further``: the line after that."""
    first = kept[0]
    if first.startswith(TORCH_SCRIPT):
        inside = line.startswith((" ", "Traceback of TorchScript", "def ", "@")) or OF_TORCH_SCRIPT.match(line)
        again = line.endswith(TORCH_SCRIPT)
        return bool(inside or again) and not any(map(OF_TORCH_SCRIPT.match, kept[1:]))
    if not line.strip():
        if _GRAPH_BREAK.match(kept[min(len(kept) - 1, 1)]) and _DETAIL.match(further):
            return True
        return bool(_INTRODUCES.search(further) or (_SEVERAL.search(first) and _ALSO.match(further)))
    if len(kept) == 1 and first.rstrip().endswith("(look up to see its traceback):"):
        return True
    if (len(kept) > 1 and kept[-1].rstrip().endswith(_OPEN_ENDS)) or line.rstrip() == "from user code:":
        return True  # what its last line introduces
    if _FIELDS.search(first) and (line.startswith(" ") or _FIELD.fullmatch(line.rstrip())):
        return True
    return _continues(line, first) or _passes_on(kept, line)


def _continues(line: str, first: str) -> bool:
    """Return whether a line that follows a message in a program's output belongs to it."""
    if line.startswith(" > "):
        return False  # Megatron's own output
    if line.startswith((" ", "\t")) or (not first and _INTRODUCES.search(line)):
        return True
    return bool(_SEVERAL.search(first) and _ALSO.match(line))


def _passes_on(kept: Sequence[str], line: str) -> bool:
    """Return whether a message consists of another exception: ``backend='inductor' raised:``, then its last line."""
    return len(kept) == 1 and kept[0].rstrip().endswith(":") and passed_on(line) is not None
