"""The lines of one attempt by their streams: whose they are, and what stands between two of them (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from ftslurm.failures.closing_lines import went_on
from ftslurm.failures.stderr_witness import witness
from ftslurm.pattern import pattern
from ftslurm.report.logs.boxes import unboxed
from ftslurm.report.logs.end import End, Ends, nodes_of
from ftslurm.report.logs.ends import ends_of
from ftslurm.report.logs.lines import GAP, Line, process, streams
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.reasons import watchdog_lines
from ftslurm.report.logs.success import ends_well, has_fitted, works
from ftslurm.report.logs.tracebacks import HEADER, names_rank, tracebacks

TAIL_LINES = 400
OTHERS_LINES = 200
"""Lines of other ranks between a traceback and the end of its process."""
SELF_LINES = 3
"""Lines at the end of a tail in which a rank names itself."""
CLOSED_BARS = 2
BAR = pattern(r"\b\d{1,3}%(?:\||[ |].{0,200}\d+/\d+ \[)")
"""Of a progress bar."""
_TAKEN_DOWN = "Some NCCL operations have failed or timed out"
_ENVIRONMENT = pattern(
    r"Lmod has detected the following error|[Uu]nable to locate a modulefile|module: command not found"
    r"|EnvironmentNameNotFound|CommandNotFoundError: Your shell"
    r"|(?:conda|activate|micromamba)\S*: (?:command not found|No such file)"
)
_STARTED = pattern(r"ip=(?P<ip>[\d.]{7,15}), pid=(?P<pid>\d{1,9})\) world_rank=(?P<rank>\d{1,6})")
_JOINED = pattern(r"\[rank=(?P<rank>\d{1,6}), world_size=\d")
_OF_LAUNCHER = pattern(
    r"torch/distributed/(?:elastic/(?!multiprocessing/errors/__init__)|run\.py|launch)"
    r"|torch\.distributed\.(?:run|launch|elastic)\b|File \"\S{1,400}/(?:torchrun|deepspeed|accelerate)\""
    r"|\bnode[_-]rank[= :]{1,2}\d"
    r"|/deepspeed/launcher/|/multiprocessing/spawn\.py\"|/distribute/launch\.py\"|\[launch\.py:\d+:"
)
# Of torch, as a rank joins its process group.
_JOINED_STORE = pattern(r"\bto store for rank: (\d{1,6})\b|\bRank (\d{1,6}): Completed store-based barrier")
LABEL = 160
"""Characters of a line in which a process states its index."""
_OF_JAX = pattern(r"(?i)\bjax|\bXla|\btpu\b")
_PROCESS_INDEX = pattern(
    r"(?i)\bprocess(?:[ _](?:index|id))?[ :=#]{1,3}(\d{1,4})(?: ?/ ?| of |,? process_count=)(\d{1,4})\b"
)
_ONE_NODE = pattern(
    r"--nnodes[= ]1\b|--standalone\b|--num_(?:nodes|machines)[= ]1\b"
    r"|\b(?:nnodes|num_nodes|num_machines)[\"']? ?[=:] ?1\b"
    r"|\b(?:min|max)_nodes +: 1\b"
)


_BINARY = pattern(r"\) of binary: (\S{1,300})$")  # of torchrun


class AttemptLog:
    """The lines of an attempt.

    Attributes:
        lines: all of them.
        rank, node: of all lines, where each rank has its own file.
        ends: what they state on the ends of processes and of the job.
        streams: the lines of each source, without the boxes that some programs draw.
        raised: each stream's lines, and the exceptions in them.
        covered: the numbers of the lines of tracebacks.
        by_local: local ranks that were taken for ranks, as of a job on one node, which nothing has excluded.
    """

    def __init__(self, lines: Sequence[Line], rank: int | None, node: str | None) -> None:
        self.lines, self.rank, self.node = lines, rank, node
        self.ends: Ends = ends_of(lines)
        self.streams = {key: unboxed(own) for key, own in streams(lines).items()}
        self.raised = [(own, tracebacks(own)) for own in self.streams.values()]
        self.covered = {number for _, raised in self.raised for each in raised for number in each.numbers}
        self.by_local: set[int] = set()
        self._labels = _Labels(lines)
        self._process_index = _process_index(lines)
        self._of_others = watchdog_lines(lines)  # which a rank that they do not name did not print
        launched = any(end.by in ("torchrun", "table", "deepspeed", "spawn") for end in self.ends.processes)
        self._launched = launched or self._labels.launched or self._unnamed_by_srun(lines)
        self._processes = dict(_processes(lines))
        self._task_nodes: dict[int | None, str] = {
            task: nodes_of(end.node)[0]
            for end in self.ends.processes
            for task in end.tasks
            if len(nodes_of(end.node)) == 1
        }

    def rank_in(self, process_name: str | None) -> int | None:
        """Return the rank of a process of Ray; None: not known."""
        name = process_name or ""
        # On the driver's own node, Ray's labels have no address.
        return self._processes.get(name, self._processes.get(name[name.rfind("pid ") :] if "pid " in name else ""))

    def has_one_node(self) -> bool:
        """Whether a line says that the job has a single node, so that local ranks are its ranks."""
        return any(_ONE_NODE.search(line.text) for line in self.lines)

    def node_of(self, line: Line) -> str | None:
        """Return the node of a line, as far as it is known."""
        return line.node or self.node or self._task_nodes.get(line.task)

    def printed_ranks(self) -> set[int]:
        """Return the ranks that labels name."""
        return self._labels.ranks

    def streamed_ranks(self) -> set[int]:
        """Return the ranks whose every line is known to be theirs: by srun's label, or by their own files."""
        found = (self.rank_of(own[0]) for own in self.streams.values() if own[0].rank is None)
        return {rank for rank in found if rank is not None}

    def part_of(self, number: int) -> int:
        """Return the part of a line, by its number: that of the last line up to it."""
        at = bisect_right(self.lines, number, key=number_of)
        return self.lines[max(0, at - 1)].part

    def source_of(self, number: int) -> tuple[int, int]:
        """Return the part and the label of a line, by its number: of one launcher, where several print to a log."""
        line = self.lines[max(0, bisect_right(self.lines, number, key=number_of) - 1)]
        return line.part, -1 if line.task is None else line.task

    def noticed_ranks(self) -> set[int]:
        """Return the ranks whose watchdog noticed that a collective had failed or was late."""
        noticed = (line for line in self.lines if "detected by watchdog" in line.text or _TAKEN_DOWN in line.text)
        return {rank for line in noticed if (rank := self.rank_of(line)) is not None}

    def rank_of(self, line: Line) -> int | None:
        """Return the rank of a line's stream."""
        if self.rank is not None:
            return self.rank
        if line.rank is not None:
            return line.rank
        if line.task is not None and not self._launched:
            return line.task
        if line.local is None:
            return self._process_index.get(line.part) if line.node is None and not self.ends.processes else None
        named = self._labels.rank_of(line)
        if named is not None or self._labels.excludes(line.local):
            return named
        rows = {end.rank for end in self.ends.processes if end.by == "table" and end.local == line.local}
        if len(rows) == 1:
            return rows.pop()
        agents = {end.agent for end in self.ends.processes if end.by == "torchrun"}
        hosts = {end.node for end in self.ends.processes if end.by == "table"}
        tasks = {each.task for each in self.lines if each.task is not None}
        nodes = {each.node for each in self.lines if each.node is not None}
        files = {each.part for each in self.lines}
        if max(len(agents), len(hosts), len(tasks), len(nodes), len(files)) == 1 and not rows:
            self.by_local.add(line.local)
            return line.local
        return None

    def ranks_of(self, end: End) -> list[int]:
        """Return the ranks whose end it is."""
        if end.rank is not None:
            return [end.rank]
        if end.by == "srun" and not self._launched:
            return list(end.tasks)
        if end.local is not None:
            rank = self.rank_of(Line("", 0, local=end.local))
            return [] if rank is None else [rank]
        if end.by == "pod" and end.node is not None:
            return self._ranks_in(end.node)
        return [self.rank] if self.rank is not None else []

    def _ranks_in(self, pod: str) -> list[int]:
        """Return the only rank of which the lines of a pod are; empty: there is none, or several.

        Its file or label may have a shorter name: worker-0 of job-worker-0.
        """
        own = [line for line in self.lines if line.node and pod.endswith(line.node)]
        named = (self.rank_of(line) if line.rank is not None else names_rank(line.text[:60]) for line in own)
        joined = (each for line in own if (each := _JOINED_STORE.search(line.text)) is not None)
        ranks = {int(each[1] or each[2]) for each in joined} or {rank for rank in named if rank is not None}
        return [ranks.pop()] if len(ranks) == 1 else []

    def lines_of(self, rank: int) -> list[Line]:
        """Return the lines of a rank in all streams, in order."""
        found = [line for own in self.streams.values() if self.rank_of(own[0]) == rank for line in own]
        return sorted(found, key=number_of)

    def end_after(self, number: int, rank: int | None) -> End | None:
        """Return the first end by an exit code after a line, of that rank or of any."""
        for end in self.ends.processes:
            if end.number <= number or end.stopped or end.code == 0 or (end.by == "srun" and self._launched):
                continue
            of = self.ranks_of(end)
            if end.code is not None and (rank is None or not of or rank in of):
                return end
        return None

    def goes_on(self, number: int, lines: Sequence[Line] | None = None) -> bool:
        """Whether a later line, of a stream or of all, is of a program that works, has done its work, or survived."""
        lines = self.lines if lines is None else lines
        rest = lines[bisect_right(lines, number, key=number_of) :]
        # A progress bar is drawn once more when it is closed.
        bars = [line.number for line in rest if BAR.search(line.text)]
        rest = [line for line in rest if line.number not in bars] if len(bars) <= CLOSED_BARS else rest
        rest_ends_well = ends_well(rest, sole=False)
        return rest_ends_well or any(
            line.number not in self.covered
            and (works(line.text) or has_fitted(line.text) or (went_on(line.text) and not is_aftermath(line.text)))
            for line in rest
        )

    def between(self, begin: int, end: int) -> int:
        """Return the number of ordinary lines between two lines."""
        return self.ordinary(self.lines, begin, end)[0]

    def ordinary(self, lines: Sequence[Line], begin: int, end: int | None) -> tuple[int, bool]:
        """Return the number of lines by which a program goes on, and whether some were left out among them.

        Args:
            lines: of a stream.
            begin, end: the numbers of the lines between which it counts, without these; no more than OTHERS_LINES.
        """
        count = 0
        for line in islice(lines, bisect_right(lines, begin, key=number_of), None):
            if (end is not None and line.number >= end) or count > OTHERS_LINES:
                break
            if line.text == GAP:
                return count, True
            count += line.number not in self.covered and not is_aftermath(line.text)
        return count, False

    def tail(self, lines: Sequence[Line], own: Collection[int] = ()) -> str:
        """The end of an output; without the tracebacks of others, which another part of the report shows."""
        mixed = bool(lines) and self.rank_of(lines[-1]) is None
        kept = [line for line in lines[-TAIL_LINES:] if line.text != GAP]
        if mixed:
            kept = [line for line in kept if line.number not in self.covered or line.number in own]
        return "\n".join(line.text for line in kept)

    def tail_of(self, rank: int) -> str:
        """The end of a rank's lines; of a log without labels the end of all."""
        own = self.lines_of(rank)
        if own:
            return self.tail(own)
        ends = [end.number for end in self.ends.processes]
        # What Kubernetes prints about a pod is no rank's output.
        about = {self.part_of(end.number) for end in self.ends.processes if end.by == "pod"}
        unlabelled = (line for line in self.lines if line.rank is None and line.task is None and line.local is None)
        unlabelled = (line for line in unlabelled if line.part not in about)
        unlabelled = (line for line in unlabelled if line.number not in self._of_others)
        unlabelled = (line for line in unlabelled if names_rank(line.text[:200]) in (None, rank))
        tail = self.tail([line for line in unlabelled if not ends or line.number < ends[0]])
        # Of several ranks' lines, only a reason at their end is known to be of the one that ended.
        ranks = {end.rank for end in self.ends.processes if end.by == "table"}
        names_itself = any(names_rank(line[:200]) == rank for line in tail.splitlines()[-SELF_LINES:])
        return tail if len(ranks) < 2 or names_itself or witness(tail) is not None else ""

    def environment(self, before: int) -> list[str]:
        """Return what modules and environments printed before a command of the batch script failed."""
        found = [i for i, line in enumerate(self.lines) if line.number < before and _ENVIRONMENT.search(line.text)]
        binary = next((each[1] for line in self.lines if (each := _BINARY.search(line.text))), "")
        quotes = [" ".join(line.text.strip() for line in self.lines[i : i + 2])[:300] for i in found[:2]]
        return [*quotes, *([f"the ranks were run by {binary}"] if binary else [])]

    def sole_node(self, end: End | None) -> str | None:
        """The node of the only task that ended."""
        own = [each for each in self.ends.processes if each.by == "srun" and not each.stopped and each.code != 0]
        nodes = {node for each in own for node in nodes_of(each.node)}
        sole = len(nodes) == 1 and (end is not None or not any(line.node for line in self.lines))
        return nodes.pop() if sole else None

    def is_nested(self) -> bool:
        """Whether processes that a rank spawns are not the job's ranks, because a launcher started these."""
        several = any(len(end.tasks) > 1 or max(end.tasks, default=0) for end in self.ends.processes)
        by_launcher = any(end.by in ("torchrun", "table", "deepspeed", "mpirun") for end in self.ends.processes)
        return several or by_launcher or any(line.task is not None or line.local is not None for line in self.lines)

    def _unnamed_by_srun(self, lines: Sequence[Line]) -> bool:
        """Whether ranks failed whose numbers srun's tasks do not reach: these are launchers, which end by exit code 1.

        The line on the end of a rank may be missing, so that ranks that srun only does not mention prove nothing.
        """
        ends = [end for end in self.ends.processes if end.by == "srun"]
        tasks = {task for end in ends for task in end.tasks}
        failed = {line.rank for line in lines if line.rank is not None and line.text.startswith(HEADER)}
        codes = {end.code for end in ends if not end.stopped}
        return bool(tasks and failed) and codes == {1} and not failed & tasks and max(failed) > max(tasks)


def _processes(lines: Sequence[Line]) -> Iterator[tuple[str, int]]:
    """Yield the processes of Ray, and the rank of each, as Ray Train and torch print them."""
    named: dict[str, set[int]] = {}
    for line in lines:
        if line.node and "pid " in line.node and (rank := names_rank(line.text[:200])) is not None:
            named.setdefault(line.node, set()).add(rank)
    # Its first line may be the only one that says so.
    yield from ((node, ranks.pop()) for node, ranks in named.items() if len(ranks) == 1)
    for line in lines:
        started = _STARTED.search(line.text)
        if started is not None:
            for name in (process(started["pid"], started["ip"]), process(started["pid"], None)):
                yield name, int(started["rank"])
        joined = _JOINED.search(line.text) if line.node else None
        if joined is not None and line.node:
            yield line.node, int(joined["rank"])


def _process_index(lines: Sequence[Line]) -> dict[int, int]:
    """Return the index of the only process of JAX, of several, that prints its own to a file, by the file's part.

    Of a single file, the first process may print it alone, and the others to the same file without it.
    """
    if not any(_OF_JAX.search(line.text) for line in lines):
        return {}
    found: dict[int, set[tuple[int, int]]] = {}
    for line in lines:
        if (stated := _PROCESS_INDEX.search(line.text[:LABEL])) is not None:
            found.setdefault(line.part, set()).add((int(stated[1]), int(stated[2])))
    sole = {part: next(iter(each)) for part, each in found.items() if len(each) == 1}
    several = len({index for index, _ in sole.values()}) > 1
    return {part: index for part, (index, count) in sole.items() if index < count and (index or several)}


class _Labels:
    """What the labels of all lines say about the numbers of ranks, local ranks and tasks."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.ranks = {line.rank for line in lines if line.rank is not None}
        self.by_local: dict[tuple[int | str | None, ...], set[int]] = {}
        self.launched = any(line.local is not None for line in lines)
        for line in lines:
            if line.rank is None:
                self.launched = self.launched or _OF_LAUNCHER.search(line.text) is not None
                continue
            if line.task is not None and line.task != line.rank:
                self.launched = True
            if line.local is not None:
                for place in ((line.task, line.node, line.local), (None, None, line.local)):
                    self.by_local.setdefault(place, set()).add(line.rank)

    def rank_of(self, line: Line) -> int | None:
        """Return the only rank that has this task, node and local rank in other lines."""
        found = self.by_local.get((line.task, line.node, line.local), set())
        return next(iter(found)) if len(found) == 1 else None

    def excludes(self, local: int) -> bool:
        """Whether a local rank cannot be the rank, because this is not the log of the first node."""
        equal = any(place[:2] == (None, None) and place[2] in ranks for place, ranks in self.by_local.items())
        return bool(self.ranks) and min(self.ranks) > local and not equal


def of_launcher(file: str) -> bool:
    """Whether a frame's file is a launcher's, or one by which Python starts a program."""
    return _OF_LAUNCHER.search(f'File "{file}"') is not None or file.endswith("/runpy.py")


def until(lines: Sequence[Line], number: int, more: int) -> Sequence[Line]:
    """Return the lines up to a line, and some after it."""
    at = bisect_right(lines, number, key=number_of)
    return lines[max(0, at - TAIL_LINES) : at + more]


def number_of(line: Line) -> int:
    """Return a line's number, as the key of a search."""
    return line.number
