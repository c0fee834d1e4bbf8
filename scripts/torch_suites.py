"""PyTorch's own suites of its launcher, on c10d, on the rendezvous `sharedfs`, and with `ftslurm run`.

    python scripts/torch_suites.py [--suite NAME] [DIRECTORY]

DIRECTORY is a checkout of PyTorch; without it, Debian's source package is fetched once and its tests are kept in
`.venv/pytorch`. Each suite runs in a copy in which c10d is replaced (`torch_substitutes.py` is what it gets). Needs
torch, numpy, expecttest and pytest-timeout. Exits with 1 if a test that passes on c10d fails otherwise and is not among
the deviations of docs/torch-suites.md.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
KEPT = Path(os.environ.get("FTSLURM_TEST_VENV") or ROOT / ".venv") / "pytorch"
DEVIATIONS = ROOT / "docs" / "torch-suites.md"
SOURCE = "http://deb.debian.org/debian/pool/main/p/pytorch/pytorch_2.6.0+dfsg.orig.tar.xz"
"""Of Debian 13; it has PyTorch's tests, which no package of PyPI has."""
SHA256 = "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff"
TESTS = ("test/distributed/elastic/", "test/distributed/launcher/")
C10D, SHAREDFS, FTSLURM = "c10d", "sharedfs", "ftslurm run"
WAYS = (C10D, SHAREDFS, FTSLURM)
TEST_S, SUITE_S, EXIT_S = 300, 3600, 10
"""Bounds of a test, a suite and its exit, in seconds: a test that waits for ever fails, and the others run."""
ATTEMPTS = 3
"""A suite that was killed runs again: that of timers ends itself where torch takes longer than a timer to start one."""
Replacements = tuple[tuple[str, str], ...]
"""Pairs of a regular expression and what replaces it; each is found in the suite at least once."""


@dataclass(frozen=True)
class Suite:
    """A file of PyTorch's tests.

    Attributes:
        path: below test/distributed.
        ways: what is replaced for each way to run it.
        inside: it runs in a rank of a launcher, instead of starting one.
        only: pytest's -k.
    """

    path: str
    ways: Mapping[str, Replacements] = field(default_factory=dict)
    inside: bool = False
    only: str = ""

    @property
    def name(self) -> str:
        """Return the name of its file without the suffix."""
        return Path(self.path).stem


_NEWER: Replacements = (
    (r"mock_datetime\.utcnow", "mock_datetime.now"),
    (r"keep_alive_interval=timedelta\(seconds=1\)", "keep_alive_interval=1"),
)
"""What newer releases of torch than Debian's ask of its tests; found or not."""
_TEST_ON_BACKEND = re.compile(r"def (test_(\w+?)_(c10d|etcd|etcd_v2))\(")
_ETCD_SERVER: Replacements = ((r"cls\._etcd_server\.(start|stop)\(\)", "pass"),)
_BACKEND = r'backend="(c10d|etcd|etcd-v2)"'
"""Tests that PyTorch runs on etcd only run on c10d and sharedfs, too."""
_HELPERS = (r"(?m)\A", "import torch_substitutes; ")

SUITES = (
    Suite(
        "elastic/agent/server/test/local_elastic_agent_test.py",
        {
            C10D: (*_ETCD_SERVER, (_BACKEND, 'backend="c10d"')),
            SHAREDFS: (
                *_ETCD_SERVER,
                (_BACKEND, 'backend="sharedfs"'),
                (r'f"localhost:\{acquire_available_port\(\)\}"', "tempfile.mkdtemp(dir=self._test_dir)"),
            ),
        },
    ),
    Suite(
        "elastic/rendezvous/dynamic_rendezvous_test.py",
        {
            C10D: (),
            SHAREDFS: (
                _HELPERS,
                (r"= FakeRendezvousBackend\(\)", "= torch_substitutes.StateBackend()"),
                (r"= _InMemoryRendezvousBackend\(\)", "= torch_substitutes.StateBackend()"),
            ),
        },
    ),
    Suite(
        # The tests of rendezvous_backend_test.py, which are a base class of these.
        "elastic/rendezvous/c10d_rendezvous_backend_test.py",
        {
            C10D: (),
            SHAREDFS: (
                _HELPERS,
                (r"C10dRendezvousBackend\(self\._store, .*\)", "torch_substitutes.StateBackend()"),
                (r"self\._store\.set\(.*\)", "self._backend.corrupt_file()"),
            ),
        },
        only="not CreateBackendTest",
    ),
    Suite(
        "elastic/timer/file_based_local_timer_test.py",
        {C10D: (), SHAREDFS: (), FTSLURM: ()},
        inside=True,
        # A server of torch 2.13 ends its own process with that of the timer: these tests of 2.6 would be the last ones.
        only="not test_get_timer_recursive and not test_timer",
    ),
    Suite(
        "launcher/test_run.py",
        {
            C10D: (),
            SHAREDFS: (
                (r"import torch\.distributed\.run as launch", "from torch_substitutes import torchrun as launch"),
                (r"--rdzv-backend=c10d", "--rdzv-backend=sharedfs"),
                (r"--rdzv-endpoint=localhost:\{get_free_port\(\)\}", "--rdzv-endpoint={self.test_dir}-rdzv"),
            ),
            FTSLURM: (
                (r"import torch\.distributed\.run as launch", "from torch_substitutes import ftslurm_run as launch"),
                # Abbreviated options are refused with the full name.
                (r"--redirect=3", "--redirects=3"),
            ),
        },
    ),
)


def main(arguments: list[str]) -> int:
    """Run the suites and print the tables; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, help="a checkout of PyTorch")
    parser.add_argument("--suite", choices=[suite.name for suite in SUITES], help="only this one")
    parser.add_argument("-k", dest="only", default="", help="only tests whose names match, as pytest's -k")
    options = parser.parse_args(arguments)
    tests = (options.directory or _debians_source()) / "test" / "distributed"
    known = _deviations(DEVIATIONS.read_text())
    unexpected: list[str] = []
    for suite in SUITES:
        if options.suite in (None, suite.name):
            results = {way: _run(suite, way, tests, options.only) for way in suite.ways}
            unexpected += _print_results(suite, results, known)
    if unexpected:
        print(f"\nFailed only otherwise than on c10d, and not in {DEVIATIONS.relative_to(ROOT)}:")
        print(*unexpected, sep="\n")
    return int(bool(unexpected))


def _debians_source() -> Path:
    """Return the directory with PyTorch's tests, fetched if they are not there."""
    if not (KEPT / "complete").exists():
        print(f"fetching {SOURCE}", flush=True)
        shutil.rmtree(KEPT, ignore_errors=True)
        KEPT.mkdir(parents=True)
        package = KEPT / "source.tar.xz"
        urllib.request.urlretrieve(SOURCE, package)
        found = hashlib.sha256(package.read_bytes()).hexdigest()
        if found != SHA256:
            raise SystemExit(f"{SOURCE}: expected sha256 {SHA256}, found {found}")
        with tarfile.open(package) as archive:
            for member in archive:
                member.name = member.name.partition("/")[2]
                if member.isfile() and member.name.startswith(TESTS):
                    archive.extract(member, KEPT)
        package.unlink()
        (KEPT / "complete").touch()
    return KEPT


def _run(suite: Suite, way: str, tests: Path, only: str) -> dict[str, bool]:
    """Run a suite in one way; return whether each test passed, without those that were skipped."""
    print(f"\n== {suite.name}: {way}", flush=True)
    with tempfile.TemporaryDirectory(prefix="torch-suites-") as place:
        copy = Path(place, "distributed")
        shutil.copytree(tests, copy, ignore=shutil.ignore_patterns("__pycache__"))
        test = copy / suite.path
        test.write_text(_replaced(test.read_text(), suite.ways[way]))
        results = Path(place, "results.xml")
        chosen = " and ".join(f"({part})" for part in (suite.only, only) if part)
        pytest = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--timeout",
            str(TEST_S),
            "-k",
            chosen,
        ]
        command = [*_rank_of(way, place, suite.inside), *pytest, "--junitxml", str(results), str(test)]
        # The directory for imports of a test's neighbours; scripts, for torch_substitutes.
        path = os.pathsep.join((str(test.parent), str(ROOT / "scripts"), str(ROOT)))
        environment = {**_environment(), "PYTHONPATH": path, "TMPDIR": place, "FTSLURM_SHARED_DIR": f"{place}/runs"}
        for _ in range(ATTEMPTS):
            _bounded(command, results, environment)
            if results.exists():
                return _results(results)
    return {}


def _replaced(text: str, replacements: Replacements) -> str:
    text = _without_twins(text)
    for pattern, replacement in _NEWER:
        text = re.sub(pattern, replacement, text)
    for pattern, replacement in replacements:
        text, found = re.subn(pattern, replacement, text)
        if not found:
            raise SystemExit(f"expected {pattern!r} in the suite: another version of PyTorch?")
    return text


def _without_twins(text: str) -> str:
    """Keep the first of the tests that differ only in their backend: with one backend they are the same."""
    seen = set()
    # c10d, etcd, etcd_v2
    for _, name, base in sorted((b, n, m) for n, m, b in _TEST_ON_BACKEND.findall(text)):
        if base in seen:
            text = text.replace(f"def {name}(", f"def twin_{name}(")
        seen.add(base)
    return text


def _rank_of(way: str, place: str, inside: bool) -> list[str]:
    """Return the command that runs a suite inside of a rank."""
    if not inside or way == C10D:
        return []
    if way == FTSLURM:
        launcher = ["-m", "ftslurm", "run", "--max-restarts=0"]
    else:
        launcher = ["-m", "torch.distributed.run", "--rdzv-backend=sharedfs", f"--rdzv-endpoint={place}/rdzv"]
    return [sys.executable, *launcher, "--no-python"]


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FTSLURM_", "SLURM", "PET_", "TORCHELASTIC_"))}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


def _bounded(command: list[str], results: Path, environment: dict[str, str]) -> None:
    """Run a suite until it has written its results; agents of a test that timed out would keep it from ending."""
    process = subprocess.Popen(command, cwd=results.parent, env=environment, start_new_session=True)
    end = time.monotonic() + SUITE_S
    while process.poll() is None and time.monotonic() < end:
        if results.exists():
            end = min(end, time.monotonic() + EXIT_S)
        time.sleep(0.5)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _results(file: Path) -> dict[str, bool]:
    cases = ElementTree.parse(file).getroot().iter("testcase")
    found = {}
    for case in cases:
        if case.find("skipped") is None:
            name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
            found[name] = case.find("failure") is None and case.find("error") is None
    return found


def _deviations(page: str) -> set[tuple[str, str]]:
    """Return the tests in the page's table, each with the way in which it may fail."""
    return set(re.findall(r"(?m)^\| `(\w+)` \| ([\w ]+) \|", page))


def _print_results(suite: Suite, results: Mapping[str, Mapping[str, bool]], known: set[tuple[str, str]]) -> list[str]:
    """Print a suite's results; return the unexpected failures."""
    print(f"\n{suite.name}:")
    expected = {name for name, passed in results[C10D].items() if passed}
    unexpected = []
    for way, found in results.items():
        print(f"  {way}: {sum(found.values())} passed, {len(found) - sum(found.values())} failed")
        if way == C10D:
            for name in sorted(found.keys() - expected):
                print(f"    here, too: {name}")
            continue
        for name in sorted(expected - {name for name, passed in found.items() if passed}):
            listed = (name.rpartition(".")[2], way) in known
            print(f"    only here: {name}{'' if listed else ', not among the deviations'}")
            if not listed:
                unexpected.append(f"  {suite.name}, {way}: {name}")
    if not expected:
        unexpected.append(f"  {suite.name}: nothing passed on c10d")
    return unexpected


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
