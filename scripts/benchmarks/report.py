"""How long the report of a small and a very large run takes, beside just reading files, and that of a large log."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sample_runs.builder import FRAMES, RunBuilder

from benchmarks import table, tools
from benchmarks.agent import machine
from benchmarks.table import Measurement

OURS, READ, OWN = "report", "just read all", "just read its own"
"""All: the node records and the error records of all failed ranks. Its own: the files that the report does read."""
NODES, PER_NODE = 2048, 8
LOG_SIZE = 10**9
READER = str(Path(__file__).with_name("report_reader.py"))
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
DEEP = tuple(
    (f"{TORCH}/{module}.py", 100 + i, name, "    return self._call_impl(*args, **kwargs)")
    for i, (module, name) in enumerate(
        (
            ("nn/modules/module", "_call_impl"),
            ("nn/parallel/distributed", "forward"),
            ("distributed/c10d_logger", "wrapper"),
            ("distributed/distributed_c10d", "all_reduce"),
        )
    )
)

MEASUREMENTS = (
    Measurement("small", "a run of 4 nodes", "s", 0.15),
    Measurement("large", f"{NODES * PER_NODE} ranks on {NODES} nodes, all failed", "s", 1.5, None),
    Measurement("large_cpu", "the same, processor time", "s"),
    Measurement("large_rss", "the same, peak resident", "MB", 200e6),
    Measurement("log", "a slurm-*.out of 1 GB", "s", 5.0),
    Measurement("log_rss", "the same, peak resident", "MB", 150e6),
    Measurement("slow", "the same, behind --mount", "s", 10.0),
)


@dataclass(frozen=True)
class Spent:
    """What a process took: seconds by the clock and of the processor, bytes resident at most."""

    wall_s: float
    cpu_s: float
    rss: float


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench report`` to the command line."""
    parser = subparsers.add_parser("report", help=__doc__, description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="samples of each (default 5)")
    parser.add_argument("--nodes", type=int, default=NODES, metavar="N", help=f"of the large run (default {NODES})")
    parser.add_argument("--backing", type=Path, metavar="DIR", help="where to put a large run that ...")
    parser.add_argument("--mount", type=Path, metavar="DIR", help="... is read from here, a slow view of --backing")
    parser.add_argument("--json", action="store_true", help="all samples as JSON instead of the table")
    parser.set_defaults(run=run)


def small_run(parent: Path) -> Path:
    """Write a run of four nodes that failed once, went on, and failed for good."""
    story = RunBuilder(parent, nodes=4, nproc=8, run_id="small").round().steps(1, 120).wait(60)
    story.fail(9, ValueError("boom"), step=120, log="step 120\n").fail(3, broken(9), after_s=0.3).stop()
    story.round().steps(100, 150).wait(9).fail(9, ValueError("boom"), step=150).stop()
    return story.close("failed", "rank 9 on n2: ValueError: boom").write()


def large_run(parent: Path, nodes: int) -> Path:
    """Write a run in which one rank raised and all others broke their connections to it."""
    story = RunBuilder(parent, nodes=nodes, nproc=PER_NODE, run_id="large").round().steps(1, 120).wait(60)
    culprit = nodes * PER_NODE * 5 // 8 + 3
    story.fail(culprit, ValueError("the loss is wrong"), step=120).wait(1)
    for rank in range(nodes * PER_NODE):
        if rank != culprit:
            story.fail(rank, broken(rank), frames=(*FRAMES, *DEEP), after_s=0.0001)
    return story.stop().close("failed", f"rank {culprit} failed").write()


def broken(rank: int) -> RuntimeError:
    """Return what gloo raises when the other end of a connection is gone: no two addresses are the same."""
    address = f"10.{rank >> 16}.{rank >> 8 & 255}.{rank & 255}"
    where = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]"
    return RuntimeError(f"{where} Connection closed by peer [{address}]:{29000 + rank % 777}")


def spend(command: list[str]) -> Spent:
    """Run a command to its end."""
    began = time.monotonic()
    pid = os.posix_spawn(
        command[0],
        command,
        tools.environment(Path(tempfile.gettempdir())),
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"bench: {' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return Spent(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def report_of(path: Path) -> Spent:
    """Measure ``ftslurm report``, the whole process."""
    return spend([sys.executable, "-m", "ftslurm.cli", "report", str(path)])


def report_of_log(path: Path) -> Spent:
    """Measure ``ftslurm report --logs``, the whole process."""
    return spend([sys.executable, "-m", "ftslurm.cli", "report", "--logs", str(path)])


def job_output(parent: Path, size: int) -> Path:
    """Write an output of that size in bytes: steps of eight ranks, a traceback that was caught, one that was not."""
    path = parent / "slurm-4711.out"
    steps = "".join(
        f"rank {i % 8} step {i // 8} loss 2.7183 lr 1.0e-4 tokens/s 123456 (epoch 3)\n" for i in range(16384)
    )
    caught = broken_traceback("ConnectionResetError: [Errno 104] Connection reset by peer")
    with path.open("w") as file:
        written = 0
        while written < size:
            written += file.write(steps)
            written += file.write(caught) if written < size / 2 else 0
        file.write(
            f"{broken_traceback('ValueError: the loss is wrong')}srun: error: n2: task 5: Exited with exit code 1\n"
        )
    return path


def broken_traceback(last: str) -> str:
    """Return a traceback with that last line."""
    frames = "".join(f'  File "{file}", line {line}, in {name}\n{source}\n' for file, line, name, source in DEEP)
    return f"Traceback (most recent call last):\n{frames}{last}\n"


def read_only(path: Path, *more: str) -> Spent:
    """Measure a process that reads the files in the same bounded way and does nothing with them."""
    return spend([sys.executable, READER, str(path), *more])


def collect(arguments: argparse.Namespace, parent: Path) -> dict[str, table.Samples]:
    """Return all samples, the report and the reader in turn."""
    results: dict[str, table.Samples] = {measurement.key: {} for measurement in MEASUREMENTS}
    small, large = parent / "small", parent / "large"
    _in_child(lambda: small_run(parent))
    _in_child(lambda: large_run(parent, arguments.nodes))
    output = job_output(parent, LOG_SIZE)
    names = str(parent / "names")
    read_only(large, names, "--write")
    slow = None
    if arguments.mount is not None:
        if not (arguments.backing / "large").exists():
            _in_child(lambda: large_run(arguments.backing, arguments.nodes))
        slow = arguments.mount / "large"
    for number in range(arguments.runs + 1):  # run 0 warms caches up and does not count
        print(f"run {number}/{arguments.runs}", file=sys.stderr, flush=True)
        samples = [("small", OURS, report_of(small).wall_s)]
        of_log = report_of_log(output)
        samples += [("log", OURS, of_log.wall_s), ("log_rss", OURS, of_log.rss)]
        for subject, spent in ((OURS, report_of(large)), (READ, read_only(large)), (OWN, read_only(large, names))):
            samples.append(("large", subject, spent.wall_s))
            samples.append(("large_cpu", subject, spent.cpu_s))
            samples.append(("large_rss", subject, spent.rss))
        if slow is not None:
            samples += [("slow", OURS, report_of(slow).wall_s), ("slow", READ, read_only(slow).wall_s)]
            samples.append(("slow", OWN, read_only(slow, names).wall_s))
        for key, subject, value in samples if number else ():
            results[key].setdefault(subject, []).append(value)
    return results


def _in_child(work: Callable[[], object]) -> None:
    """Do it in a child: what a process holds counts as the peak of what it starts (getrusage(2) across exec)."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(f"bench: {error!r}", file=sys.stderr)
            os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        raise SystemExit("bench: the run could not be written")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0, or 2 for a wrong command line."""
    if arguments.runs < 1 or arguments.nodes < 1:
        print("bench: --runs and --nodes: expected 1 or more", file=sys.stderr)
        return 2
    if (arguments.mount is None) != (arguments.backing is None):
        print("bench: --mount and --backing are two views of one directory: give both or none", file=sys.stderr)
        return 2
    with _directory() as parent:
        results = collect(arguments, parent)
    if arguments.json:
        facts = {"machine": machine(), "runs": arguments.runs, "nodes": arguments.nodes}
        print(json.dumps(facts | {"measurements": table.as_json(MEASUREMENTS, results, OURS)}, indent=2))
        return 0
    facts = machine()
    print(f"{arguments.runs} interleaved runs, {arguments.nodes} nodes of {PER_NODE} ranks, warm page cache")
    print(f"{facts['system']}, {facts['cores']} cores, load {facts['load']}\n")
    print("\n".join(table.lines(MEASUREMENTS, results, [OURS, READ, OWN], OURS)))
    return 0


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-") as name:
        yield Path(name)
