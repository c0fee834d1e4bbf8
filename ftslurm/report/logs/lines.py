"""The lines of a log without what terminals and launchers put into them, each with its label (pure).

Labels: srun's (``3: ``, with --label), torch's (``[rank3]:``), torchrun's (``[default3]:``: a local rank), mpirun's
(``[1,3]<stderr>:``), horovodrun's (``[3]<stderr>:``), pdsh's (``n4: ``), Ray's (``(f pid=7, ip=10.0.0.2)``) and
SageMaker's (``[1,mpirank:3,algo-2]<stderr>:``). They nest, as launchers do: ``n4: 12: [default3]:[rank51]: ``; the time
that a collector puts before each line is passed over where a label follows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ftslurm.pattern import pattern
from ftslurm.report.logs.collectors import uncollected
from ftslurm.report.logs.noise import is_by_slurm
from ftslurm.report.logs.reading import Excerpt

GAP = "\0 left out"
"""The text of a line in the place of a part that was not kept."""
LONG = 8192
LEAST = 20
LABELLED = 0.7
"""Share of lines that must begin with a label for it to be one: a program may print such text by itself."""

_ESCAPE = pattern(r"\x1b(?:\[[0-9;?:]*[ -/]*[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)?|[()][A-Z0-9]|.)?")
_SHOWN_ESCAPE = pattern(r"\^\[\[[0-9;]{0,20}[A-Za-z]")  # as some viewers show it
_CONTROL = pattern(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u2028\u2029]+")
_TASK = pattern(r" {0,6}(\d{1,6}):(?!\d\d:\d\d) ?")  # no time
# Of nodes, and the names of containers.
_HOST = pattern(
    r"([A-Za-z][\w-]{0,60}\d[\w-]{0,20}(?:\.[\w.-]{1,80})?|(?:\d{1,3}\.){3}\d{1,3}|(?=[a-f]*\d)[0-9a-f]{12}): "
)
# Of Intel MPI's patterns, of torch_xla's launcher, and of scripts that give each task's output a prefix.
_HOST_RANK = pattern(
    r"(\[(?P<host>[A-Za-z][\w.-]{0,60}):(?P<number>\d{1,5})\]:"
    r"|(?P<ip>(?:\d{1,3}\.){3}\d{1,3}) \[(?P<index>\d{1,6})\] ?"
    r"|\[(?P<proc>\d{1,5})\] \[(?P<of>[A-Za-z][\w.-]{0,60}\d)\] "
    r"|\[(?P<task>\d{1,5})[:@](?P<node>[A-Za-z][\w.-]{0,60}\d[\w.-]{0,20})\]:? ?)"
)
_POD_NAME = pattern(r"([a-z][a-z0-9.-]{2,80}-\d{1,4}) ")  # behind a collector's time
_OWN = pattern(
    r"\[rank(?P<rank>\d{1,6})\]: ?"
    r"|\[(?P<role>[a-z][a-z_]{0,20}?)(?P<local>\d{1,4})\]:"
    r"|\[(?:\w[\w.-]{0,80}@)?1,(?P<mpi>\d{1,6})\](?:<\w{1,8}>)?:"
    r"|\[1,mpirank:(?P<sage>\d{1,6}),(?P<algo>[\w.-]{1,60})\](?:<\w{1,8}>)?:"
    r"|\[(?P<horovod>\d{1,6})\]<(?:stdout|stderr)>:"
    r"|\((?P<actor>[\w.:()-]{1,80}) pid=(?P<pid>\d{1,9})(?:, ip=(?P<ip>[\d.]{7,15}))?\) "
)
# Of XLA's coordination service: which ones are in the next line.
_UNHEALTHY = pattern(r"(tasks are unhealthy \([^)\n]{1,80}\):)\n(?: {0,6}\d{1,6}: )?(?=/job:)")
# A progress bar has no line end; what another rank prints follows in its line.
_BEHIND = pattern(
    r"(?m)^(?P<before>[^\n]{1,8192}?)(?P<other>\[rank\d{1,6}\]: ?Traceback \(most recent"
    r"|(?:\[rank\d{1,6}\]: ?|(?<!\]:)(?<!\]: ))\[[EWF]\d{0,4} (?:[\d:.]{8,20} )?ProcessGroup\w{1,20}\.cpp:\d)"
)
# Lines that a viewer numbers, before a label of torch.
_COUNTED = pattern(r"(?m)^\[(\d{1,9})\] (?=\[(?:rank|default)\d{1,6}\]:)")
# Ray prints the frames of another process below this line instead of a traceback's header.
_REMOTE = pattern(
    r"(?m)(?<=[ )\n])(?:(?:ray\.exceptions\.)?RayTaskError\(\w+\)|Unhandled error \([^)\n]{1,80}\)): ray::[^\n]*"
    r"(?=\n(?: {4}[^\n]*\n)?[^\n]{0,120}  File \")|"
    r"\Aray\.exceptions\.RayTaskError\(\w+\): ray::[^\n]*(?=\n  File \")"
)
_PROCESS = pattern(r"\(pid=(?P<pid>\d{1,9}), ip=(?P<ip>[\d.]{7,15})")
_TENSOR = pattern(r"(?:Vllm)?Worker_TP(\d{1,4})")  # of vLLM, the rank among those of tensor parallelism
_OF_PROCESS = pattern(r"(?:[\d.]+ )?pid \d+$")
_REPR_RANK = pattern(r"repr=\w[\w.]{0,120}\[rank=(\d{1,6})\]")
REMOTE = " of process "
"""Behind the header of a traceback of Ray's: the process follows."""
_HEADER = "Traceback (most recent call last):"
_RANK_TAG = pattern(r"[\[(](?:rank|worker|trainer)[ _#]?(\d{1,6})[\])] (?:: )?")  # of a program's own logger
_TAG = pattern(r"\[(\d{1,6})\](?:: ?(?=.)| )")  # of MPI launchers and of NVIDIA's
# Of docker compose, kubectl and stern: "trainer-2 pytorch [rank2]: ", "worker-3  | ".
_POD = pattern(
    r"([A-Za-z][\w./@-]{0,60}?\d[\w.-]{0,40}|[A-Za-z][\w./@-]{0,60}(?= *\| ))(?: [A-Za-z][\w.-]{0,60})?"
    r"(?: *\| |:? (?=\[rank\d{1,6}\]:|\[default\d{1,4}\]:))"
)
_PROOF_OF_HOST = pattern(
    rf"{_HOST.pattern}(?:\[(?:rank|default)\d{{1,6}}\]:|\[\d{{4}}-[^\]]{{1,30}}\] \[INFO\] \[launch\.py:)"
)
_NAMED_RANK = pattern(r"(?i)rank[-_]?(\d{1,6})")
_STAMP = pattern(r"\[?(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?:? (?=\S)")
_STAMP_OF_MPI = pattern(r"(?:[A-Z][a-z]{2} ){2}[ \d]\d [\d:]{8} \d{4}(?=\[(?:1,)?\d{1,6}\]<std)")
# Of a program that logs what its own ranks print.
_BY_LOGGER = pattern(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]? (?:[-|] )?(?:[\w.:\[\]-]{1,60} (?:[-|] )?)?"
    r"\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?(?: [-|]|:)? ?"
)
_OF_TRACEBACK = pattern(
    r"\s|$|Traceback|During handling|The above exception|\[[EWF]\d{0,4} |(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}"
    r"(?:Error|Exception|Interrupt|Exit)(?:: |$)|\|"
)
_BY_TORCH = pattern(r"\[[EWF]\d{0,4} [\d:.]{0,20} ?\w{1,40}\.cpp:\d")
_CONTINUED = pattern(r"nccl\w{4,30}Error: |Last error:|Exception raised from |frame #\d")
_LAST_ERROR = "Last error:"
_BLOCK = pattern(r"-{10}(?P<border>Begin|End) global rank (?P<rank>\d{1,6}) STD(?:OUT|ERR)-{10}$")
_LABELS = pattern(
    rf"(?:{_STAMP.pattern})?(?:{_TASK.pattern}|{_HOST.pattern}|{_POD.pattern}"
    r"|\[(?!rank\d)[a-z][a-z_]{0,20}?\d{1,4}\]: ?|\[1,(?:\d+|mpirank:[^]]{1,80})\][^:]{0,9}:"
    r"|\[\d{1,6}\](?:: ?(?=.)| )){0,4}"
)
_BOX_OF_MPI = pattern(r"={10,}$|= {3}\S|-{20,}$")
_OF_STEP = pattern(r" {0,6}\d{1,6}: (?:slurmstepd|srun): ")
_TASKS_ENDED = pattern(r"srun: error: \S{1,300}: tasks? ([\d,-]{1,300}): ")


class Line(NamedTuple):
    """A line of a log: its text without its label.

    ``number`` orders all lines of a job; ``task``: srun's label, a rank's or an agent's; ``local``: the local rank;
    ``part``: differs between files of different processes.
    """

    text: str
    number: int
    rank: int | None = None
    task: int | None = None
    local: int | None = None
    node: str | None = None
    part: int = 0

    @property
    def key(self) -> tuple[int | str | None, ...]:
        """Equal for lines of one stream."""
        return self.rank, self.task, self.local, self.node, self.part


def lines_of(excerpt: Excerpt) -> list[Line]:
    """Return the labelled lines of a log."""
    plain: list[str] = []
    for part in excerpt.parts:
        if part.gap:
            plain.append(GAP)
        plain += cleaned(part.text)
    return labelled(plain)


def cleaned(text: str) -> list[str]:
    """Return the lines of a text as a terminal would show them, but with all that a carriage return overwrites."""
    text = text.replace("\r\n", "\n")
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "^[[" in text:
        text = _SHOWN_ESCAPE.sub("", text)
    # A collector knows lines, not what a carriage return begins.
    text = "\n".join(uncollected(text.split("\n")))
    if "\x1b" in text:  # within JSON
        text = _ESCAPE.sub("", text)
    if "\r" in text:
        text = text.replace("\r", "\n")
    text = _CONTROL.sub("", text)
    text = text.replace("C++ Traceback (most", "C++ stack (most")  # of Paddle: none of Python
    if "tasks are unhealthy" in text:
        text = _UNHEALTHY.sub(r"\1 ", text)
    if "): ray::" in text:
        text = _REMOTE.sub(_remote, text)
    if "]: Traceback" in text or "ProcessGroup" in text:
        text = _BEHIND.sub(_apart, text)
    if ("] [rank" in text or "] [default" in text) and _is_counted(_COUNTED.findall(text)):
        text = _COUNTED.sub("", text)
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [line if len(line) <= LONG else f"{line[: LONG // 2]} ... {line[-LONG // 2 :]}" for line in lines]


def _remote(found: re.Match[str]) -> str:
    """Return a traceback's header for Ray's line on the process whose frames follow."""
    named = _PROCESS.search(found[0])
    if named is None:
        return _HEADER
    rank = _REPR_RANK.search(found[0])
    return f"{_HEADER}{REMOTE}{process(named['pid'], named['ip'])}{f', rank {rank[1]}' if rank else ''}"


def process(pid: str, ip: str | None) -> str:
    """Return the name of a process of Ray, which takes the place of a node's."""
    return f"{ip} pid {pid}" if ip else f"pid {pid}"


def _is_counted(found: Sequence[str]) -> bool:
    """Whether numbers before labels are of lines, and not of tasks."""
    return len(found) > 2 and all(int(a) < int(b) for a, b in pairwise(found))


def _apart(found: re.Match[str]) -> str:
    """What follows a progress bar, in a line of its own; behind another label it is in one already."""
    labels = _LABELS.match(found.string, found.start())
    # torchrun and torch both label a line by its rank.
    twice = found["other"].startswith("[rank") and found["before"].rstrip().endswith(found["other"].split(" ")[0])
    border = "" if twice or (labels is not None and labels.end() == found.start("other")) else "\n"
    return f"{found['before']}{border}{found['other']}"


def labelled(texts: Sequence[str]) -> list[Line]:
    """Return the lines with their labels; a label of srun or pdsh must be at nearly all lines of an attempt."""
    borders = [i + 1 for i, text in enumerate(texts) if "error: *** " in text and " CANCELLED AT " in text]
    lines: list[Line] = []
    for begin, end in zip([0, *borders], [*borders, len(texts)], strict=True):
        part = texts[begin:end]
        outer = _outer_labels(part)
        lines += [_line(text, begin + i, outer) for i, text in enumerate(part)]
    return _with_blocks(_with_continued(lines))


def _with_blocks(lines: list[Line]) -> list[Line]:
    """Give the lines between the borders that Composer's launcher prints around a rank's output its rank."""
    rank: int | None = None
    first = 0  # of a block that has lost its first lines
    for i, line in enumerate(lines):
        border = _BLOCK.match(line.text) if line.text.startswith("----------") else None
        if border is not None:
            if border["border"] == "End" and rank is None:
                of = int(border["rank"])
                lines[first:i] = [each._replace(rank=of) if each.text != GAP else each for each in lines[first:i]]
            rank, first = int(border["rank"]) if border["border"] == "Begin" else None, i + 1
        elif rank is not None and line.rank is None and line.text != GAP:
            lines[i] = line._replace(rank=rank)
    return lines


def _with_continued(lines: list[Line]) -> list[Line]:
    """Give the further lines of a message of torch's C++ code the label of its first line."""
    for i in range(1, len(lines)):
        line, before = lines[i], lines[i - 1]
        if line.rank is not None or before.rank is None or not (line.text and before.text):
            continue
        if line.text.startswith(("Fatal Python error: ", "Current thread ", "Thread ", '  File "')):
            continue  # of faulthandler, which writes no label, of any rank
        begun = _BY_TORCH.match(before.text) or _CONTINUED.match(before.text) or lines[i - 2].text == _LAST_ERROR
        if begun and (_CONTINUED.match(line.text) or before.text == _LAST_ERROR):
            lines[i] = line._replace(rank=before.rank, local=before.local)
    return lines


def _outer_labels(texts: Sequence[str]) -> list[re.Pattern[str]]:
    """Return the labels at nearly all lines, outermost first; each kind can be there once."""
    full = [text for text in texts if text.strip() and text != GAP and not is_by_slurm(text)]
    full = [text for text in full if not text.startswith("+ ")]  # the batch script's trace
    full = [text for text in full if not _BOX_OF_MPI.match(text)] or full
    # Above what srun or pdsh labels, a batch script prints by itself, as the tables of nvidia-smi.
    label = _HOST if any(map(_PROOF_OF_HOST.match, full)) else _TASK
    begin = next((i for i, text in enumerate(full) if label.match(text)), 0)
    full = full[begin:] if len(full) - begin >= LEAST else full
    found: list[re.Pattern[str]] = []
    if _stamped(full):
        found.append(_STAMP)
        full = [_STAMP.sub("", text, count=1) for text in full]
    for _ in range(2):
        if _TASK not in found and (_usual(full, _TASK, limit=65536) or _proved(full, texts)):
            label = _TASK
        elif _TASK not in found and _TAG not in found and _usual(full, _TAG, limit=65536):
            label = _TAG
        elif found in ([], [_STAMP]) and _usual(full, _RANK_TAG, limit=65536):
            label = _RANK_TAG
        elif found in ([], [_STAMP]) and _usual(full, _HOST_RANK, limit=65536):
            label = _HOST_RANK
        elif _HOST not in found and _POD not in found and _usual(full, _HOST, limit=4096):
            label = _HOST
        elif _HOST not in found and _POD not in found and _usual(full, _POD, limit=4096):
            label = _POD
        elif found == [_STAMP] and _usual(full, _POD_NAME, limit=4096):
            label = _POD_NAME
        else:
            break
        found.append(label)
        full = [text[match.end() :] if (match := label.match(text)) else text for text in full]
    return found


def _stamped(texts: Sequence[str]) -> bool:
    """Whether a collector put the time before each line: a program's own times are not at labels and tracebacks."""
    rests = [text[found.end() :] for text in texts if (found := _STAMP.match(text))]
    if len(rests) < 3 or len(rests) < LABELLED * len(texts):
        return False
    labels = sum(any(label.match(rest) for label in (_OWN, _TASK, _RANK_TAG, _HOST_RANK, _POD_NAME)) for rest in rests)
    return labels >= LABELLED * len(rests)


def _usual(texts: Sequence[str], label: re.Pattern[str], limit: int) -> bool:
    found = Counter(match[1] for text in texts if (match := label.match(text)))
    number = found.total()
    if number < 3 or number < LABELLED * len(texts) or len(found) > limit:
        return False
    # Counted lines ("1: ", "2: ", ...) are no labels: each label has several lines.
    return len(found) == 1 or number >= 2 * len(found)


def _proved(full: Sequence[str], texts: Sequence[str]) -> bool:
    """Whether few lines have srun's labels for certain: at its own lines, or as the numbers of tasks that ended."""
    found = {int(match[1]) for text in full if (match := _TASK.match(text))}
    if not found or not all(_TASK.match(text) for text in full):
        return False
    if any(_OF_STEP.match(text) for text in full):
        return True
    ended = [match[1] for text in texts if (match := _TASKS_ENDED.match(text))]
    return found <= {number for each in ended for number in numbers(each)}


def numbers(text: str) -> list[int]:
    """Return the numbers in Slurm's form of a list of tasks."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), min(int(last or first), int(first) + 65536) + 1)
    return found


def _line(text: str, number: int, outer: Sequence[re.Pattern[str]]) -> Line:
    line = Line(text, number)
    if not text or text == GAP:
        return line
    for label in outer:
        found = label.match(line.text)
        if found is not None and not (label is _HOST and is_by_slurm(line.text)):
            line = _outer(line, label, found)
    if "]<std" in line.text[:48] and (stamp := _STAMP_OF_MPI.match(line.text)) is not None:
        line = line._replace(text=line.text[stamp.end() :])
    begin = line.text.find("[rank", 1, 160)
    if begin > 0 and _is_prefix(line.text, begin) and (own := _OWN.match(line.text, begin)) and own["rank"]:
        rest = line.text[own.end() :]
        # Its time and level are of use, but not within a traceback.
        text = rest if _OF_TRACEBACK.match(rest) else f"{line.text[:begin]}{rest}"
        return line._replace(text=text, rank=int(own["rank"]))
    while line.text[:1] in ("[", "(") and (found := _OWN.match(line.text)):
        if found["role"] in ("w", "e", "i", "f"):
            break
        line = _inner(line, found)
    # torchrun's label has no space after it, torch's may have one before it.
    if line.text.startswith(" [rank") and (found := _OWN.match(line.text[1:])):
        line = _inner(line._replace(text=line.text[1:]), found)
    return line


def _is_prefix(text: str, end: int) -> bool:
    """Whether what is before a label of torch's is a time, or what a logger puts before what its ranks print."""
    stamp = _STAMP.match(text)
    return (stamp is not None and stamp.end() == end) or _BY_LOGGER.fullmatch(text, 0, end) is not None


def _outer(line: Line, label: re.Pattern[str], found: re.Match[str]) -> Line:
    text = line.text[found.end() :]
    if label is _STAMP:
        return line._replace(text=text)
    if label is _HOST_RANK:
        number = found["number"] or found["index"] or found["proc"] or found["task"]
        host = found["host"] or found["ip"] or found["of"] or found["node"]
        return line._replace(text=text, task=int(number), node=host)
    if label in (_TASK, _TAG, _RANK_TAG):
        return line._replace(text=text, task=int(found[1]))
    named = _NAMED_RANK.fullmatch(found[1])
    return line._replace(text=text, rank=int(named[1])) if named else line._replace(text=text, node=found[1])


def _inner(line: Line, found: re.Match[str]) -> Line:
    text = line.text[found.end() :]
    if found["rank"]:
        return line._replace(text=text, rank=int(found["rank"]))
    if found["sage"]:
        return line._replace(text=text, task=int(found["sage"]), node=found["algo"])
    if found["mpi"] or found["horovod"]:
        return line._replace(text=text, task=int(found["mpi"] or found["horovod"]))
    if found["role"] == "cli_":  # MPICH's
        return line._replace(text=text, task=int(found["local"]))
    if found["local"]:
        return line._replace(text=text, local=int(found["local"]))
    # Of a process and the one that it started, the latter printed the line.
    tensor = _TENSOR.fullmatch(found["actor"])
    line = line if tensor is None else line._replace(rank=int(tensor[1]))
    outer = line.node is not None and _OF_PROCESS.match(line.node) is not None
    return line._replace(text=text, node=process(found["pid"], found["ip"]) if outer or not line.node else line.node)


def streams(lines: Iterable[Line]) -> dict[tuple[int | str | None, ...], list[Line]]:
    """Return the lines by their label."""
    found: dict[tuple[int | str | None, ...], list[Line]] = {}
    for line in lines:
        if line.text == GAP:
            # In each stream something may have been left out.
            for key, own in found.items():
                if key[-1] == line.part:
                    own.append(line)
            continue
        found.setdefault(line.key, []).append(line)
    return found
