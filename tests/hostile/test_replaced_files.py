"""Every file and directory of a run, replaced by everything that it must not be, against every command.

What must hold: no traceback, no hang, no byte written outside the run, nothing of another user's in what is printed.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftslurm import cli

ROOT = os.geteuid() == 0
HANG_S = 30.0
"""The bar is 5 s on a machine of its own; this one may be busy."""
OTHER = 12345
SECRET = "what-no-other-user-may-read"
MANY = 1_000_000
SCRIPT = """
import os, ftslurm
for step in range(3):
    ftslurm.progress(step)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("boom")
"""
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))} | {"FTSLURM_HEALTH": "off"}


class World:
    """A directory with a run in it, and what must not be touched beside it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.place = base / "place"
        self.place.mkdir()
        self.outside = base / "outside"
        (self.outside / "directory").mkdir(parents=True)
        (self.outside / "directory" / "inside").write_text(SECRET)
        (self.outside / "file").write_text(SECRET)
        (self.outside / "file").chmod(0o600)
        (self.place / "train.py").write_text(SCRIPT)
        self.many: Path | None = None
        started = self.command("run", "--rdzv-id", "mine", "--local-nodes", "2", "train.py")
        assert started.returncode == 0, started.stderr
        assert self.command("nodes", "exclude", "n1", "n2", "--reason", "tests").returncode == 0
        self.run = self.place / "ftslurm-runs" / "mine"
        self.before = self.state()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ftslurm.cli", *arguments]
        return subprocess.run(
            command, cwd=self.place, env=CLEAN, capture_output=True, text=True, errors="replace", timeout=2 * HANG_S
        )

    def state(self) -> dict[str, tuple[int, int, bytes]]:
        """What lies outside the run, with its times and content."""
        found = {}
        for path in sorted(self.outside.rglob("*")):
            facts = path.lstat()
            # A directory's time changes also by what is made there and removed again, where the user's own link leads.
            time_ns = 0 if path.is_dir() else facts.st_mtime_ns
            found[str(path)] = (facts.st_mode, time_ns, path.read_bytes() if path.is_file() else b"")
        return found

    def many_entries(self) -> Path:
        """A directory with a million entries, made once."""
        if self.many is None:
            self.many = self.base / "many"
            self.many.mkdir()
            at = os.open(self.many, os.O_RDONLY)
            for number in range(MANY):
                os.symlink("x", f"{number:06d}.json", dir_fd=at)
            os.close(at)
        return self.many


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # Memory: a million entries are made and removed in seconds.
    base = Path("/dev/shm") / f"ftslurm-hostile-{os.getpid()}"
    base.mkdir(mode=0o755)
    for part in ("report", "status", "nodes", "doctor", "health", "slurm", "sharedfs"):
        package = importlib.import_module(f"ftslurm.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    try:
        yield World(base)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _marked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item if key == "schema" else _marked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_marked(item) for item in value]
    return f"{value} {SECRET}" if isinstance(value, str) else value


def _changed(data: bytes, change: Callable[[Any], Any]) -> bytes:
    """JSON with its values changed; any other text is one value."""
    try:
        return json.dumps(change(json.loads(data))).encode()
    except ValueError:
        return str(change(data.decode())).encode("utf-8", "surrogatepass")


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item if key == "version" else _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return 10**400 if isinstance(value, int) and not isinstance(value, bool) else value


def _characters(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item if key == "schema" else _characters(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_characters(item) for item in value]
    return f"\x1b]0;x\x07\x1b[2J\u202e\u2066{value}\x00\r\n<script>|`\ud800" if isinstance(value, str) else value


def fifo(path: Path, data: bytes | None, world: World) -> None:
    os.mkfifo(path)


def device(path: Path, data: bytes | None, world: World) -> None:
    os.mknod(path, 0o020600, os.makedev(1, 5))  # /dev/zero


def link(path: Path, data: bytes | None, world: World) -> None:
    path.symlink_to(world.outside / ("directory" if data is None else "file"))


def dangling(path: Path, data: bytes | None, world: World) -> None:
    path.symlink_to(world.outside / "not-made")


def loop(path: Path, data: bytes | None, world: World) -> None:
    path.symlink_to(path.name)


def other_kind(path: Path, data: bytes | None, world: World) -> None:
    if data is None:
        path.write_bytes(b"{}")
    else:
        path.mkdir()


def unix_socket(path: Path, data: bytes | None, world: World) -> None:
    before = os.getcwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path.name)
    os.chdir(before)


def sparse(path: Path, data: bytes | None, world: World) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def foreign(path: Path, data: bytes | None, world: World) -> None:
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(_changed(data, _marked))
    os.chown(path, OTHER, OTHER)


def foreign_writable(path: Path, data: bytes | None, world: World) -> None:
    foreign(path, data, world)
    path.chmod(0o777)


def many(path: Path, data: bytes | None, world: World) -> None:
    world.many_entries().rename(path)


def torn(path: Path, data: bytes | None, world: World) -> None:
    path.write_bytes((data or b"")[: len(data or b"") // 2])


def deep(path: Path, data: bytes | None, world: World) -> None:
    path.write_bytes(b"[" * 200_000 + b"]" * 200_000)


def numbers(path: Path, data: bytes | None, world: World) -> None:
    path.write_bytes(_changed(data or b"", _numbers).replace(b"1" + b"0" * 400, b"1e999", 1))


def characters(path: Path, data: bytes | None, world: World) -> None:
    path.write_bytes(_changed(data or b"", _characters))


ANY = (fifo, link, dangling, loop, other_kind, unix_socket, *((device, foreign, foreign_writable) if ROOT else ()))
FILES = (*ANY, sparse, torn, deep, numbers, characters)
DIRECTORIES = (*ANY, many)
Trap = Callable[[Path, "bytes | None", World], None]


def replaced(path: Path, trap: Trap, world: World) -> Callable[[], None]:
    """Put the trap in the path's place; return what undoes that."""
    kept = world.base / "kept"
    data = path.read_bytes() if path.is_file() else None
    path.rename(kept)
    trap(path, data, world)

    def undo() -> None:
        if trap is many:
            path.rename(world.base / "many")
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        kept.rename(path)

    return undo


def call(world: World, *arguments: str) -> str:
    """Run a command in a fork of this process, which has its modules loaded; return what is wrong, or nothing."""
    out = world.base / "out"
    pid = os.fork()
    if pid == 0:
        try:
            fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(fd, stream)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            os.chdir(world.place)
            os.environ.clear()
            os.environ.update(CLEAN)
            cli.main(list(arguments))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    end = time.monotonic() + HANG_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "it hangs"
        time.sleep(0.002)
    return wrong(world, out.read_bytes().decode("utf-8", "replace"))


def wrong(world: World, output: str) -> str:
    """What is wrong with a command's output, and with what it has left outside."""
    # Not any traceback: the run has a rank's own.
    if re.search(r'File "[^"]*/ftslurm/[^"]*\.py", line', output):
        return f"a traceback:\n{output}"
    if "defect of ftslurm" in output:
        return f"a defect:\n{output}"
    if SECRET in output:
        return f"another user's text:\n{output}"
    if any(mark in output for mark in ("\x1b]", "\u202e", "\x00")):
        return "control characters"
    if world.state() != world.before:
        return "something outside was changed"
    return ""


def members(run: Path) -> list[Path]:
    """The run directory's files and directories, itself included: the first and the last of each kind."""
    kinds: dict[str, list[Path]] = {}
    for path in (run, *sorted(run.rglob("*"))):
        kinds.setdefault(re.sub(r"[0-9]+", "#", str(path.relative_to(run))), []).append(path)
    return [path for kind in kinds.values() for path in dict.fromkeys((kind[0], kind[-1]))]


def cases(paths: list[Path]) -> list[tuple[Path, Trap]]:
    """Each of the paths with each trap for its kind."""
    return [(path, trap) for path in paths for trap in (DIRECTORIES if path.is_dir() else FILES)]


def checked(world: World, tried: list[tuple[Path, Trap]], do: Callable[[], str]) -> None:
    """Spring each trap, do something with it there, and report what was wrong."""
    problems = []
    for path, trap in tried:
        undo = replaced(path, trap, world)
        try:
            problem = do()
        finally:
            undo()
        if problem:
            problems.append(f"{path.relative_to(world.place)} as {trap.__name__}: {problem[:3000]}")
    assert not problems, f"{len(problems)}:\n" + "\n".join(problems[:5])


@pytest.mark.parametrize(
    ("arguments", "traps"),
    [
        (("report", "--all"), None),
        (("status",), None),
        (("report", "--format", "html"), ("foreign", "numbers", "characters", "deep")),
        (("report", "--json"), ("foreign", "numbers", "characters")),
        (("report", "--format", "markdown"), ("characters",)),
    ],
    ids=lambda arguments: " ".join(arguments or ()),
)
def test_no_command_that_reads_a_run_is_broken_by_what_lies_in_a_files_place(
    world: World, arguments: tuple[str, ...], traps: tuple[str, ...] | None
) -> None:
    tried = [(path, trap) for path, trap in cases(members(world.run)) if not traps or trap.__name__ in traps]
    checked(world, tried, lambda: call(world, arguments[0], str(world.run), *arguments[1:]))


def test_no_command_about_nodes_is_broken_by_what_lies_in_a_files_place(world: World) -> None:
    aside = next(world.run.parent.glob("excluded-*"))
    paths = [aside, *sorted(aside.rglob("*"))]
    checked(world, cases(paths), lambda: call(world, "nodes", "list") or call(world, "nodes", "list", "--json"))
    checked(world, cases([aside])[:-1], lambda: call(world, "nodes", "exclude", "n9", "--reason", "x"))


@pytest.mark.parametrize(
    "arguments", [("doctor", "--seconds", "0.5"), ("health", "storage", "--shared-dir", "ftslurm-runs")]
)
def test_no_command_about_a_directory_is_broken_by_what_lies_in_it_or_in_its_place(
    world: World, arguments: tuple[str, ...]
) -> None:
    checked(world, cases([world.run.parent]), lambda: call(world, *arguments))


def test_a_run_that_goes_on_in_a_directory_is_not_broken_by_what_lies_in_a_files_place(world: World) -> None:
    """Each file and directory meets some traps, in turn; a run may refuse, in a line, and may not hang or follow."""
    kept = world.base / "whole"
    shutil.copytree(world.run, kept, symlinks=True)

    def go_on() -> str:
        try:
            done = world.command("run", "--rdzv-id", "mine", "--join-timeout", "2", "--max-restarts", "1", "train.py")
        except subprocess.TimeoutExpired:
            return "it hangs"
        return wrong(world, done.stdout + done.stderr)

    problems = []
    for number, path in enumerate(members(world.run)):
        traps = DIRECTORIES[:-1] if path.is_dir() else FILES
        trap = traps[number % len(traps)]
        undo = replaced(path, trap, world)
        problem = go_on()
        if problem:
            problems.append(f"{path.relative_to(world.place)} as {trap.__name__}: {problem[:3000]}")
        del undo
        (world.base / "kept").rename(world.base / f"done-{number}")
        if world.run.is_dir() and not world.run.is_symlink():
            shutil.rmtree(world.run)
        else:
            world.run.unlink()
        shutil.copytree(kept, world.run, symlinks=True)
    assert not problems, f"{len(problems)}:\n" + "\n".join(problems[:5])
