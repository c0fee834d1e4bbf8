"""Whatever happened to a run's files: always a report, never a traceback, never a hang, bounded memory."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report.command import main
from ftslurm.report.pipeline import FORMATS, make_report, rendered

SECONDS = float(os.environ.get("FTSLURM_PROPERTY_SECONDS", "3"))  # for each shape
SEED = int(os.environ.get("FTSLURM_PROPERTY_SEED", str(random.SystemRandom().randrange(10**9))))
CASE_S = 5.0  # a case takes milliseconds; this is a hang
GROWTH = 400 << 20
NOW_NS = 1_772_400_000 * 10**9
SECRET = "s3cret-of-somebody"
# What can act on a terminal or turn a line around.
ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]")

GLOO = RuntimeError("[/gloo/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:29500")


def failure(parent: Path) -> Path:
    run = RunBuilder(parent).round().steps(1, 120).wait(60)
    run.fail(3, ValueError("boom"), step=120, log="step 120\n").fail(1, GLOO, after_s=0.5).stop()
    run.round().steps(100, 130).wait(9).fail(0, signal="SIGSEGV", record=False, log="crash\n")
    run.log(0, "Fatal Python error: Segmentation fault\n", "stacks").log(0, "out\n", "stdout")
    return run.stop().close("failed", "rank 0 on n1: SIGSEGV").write()


def hang(parent: Path) -> Path:
    waits = [("/w/train.py", 9, "main"), ("/v/site-packages/torch/distributed/distributed_c10d.py", 99, "all_reduce")]
    places: dict[int, list[tuple[str, int, str]] | str] = {
        0: waits,
        1: waits,
        2: [("/w/train.py", 7, "load")],
        3: "stopped (SIGSTOP)",
    }
    run = RunBuilder(parent).round().steps(1, 9).hang(2, places=places)
    return run.stop().close("failed", "rank 2 on n2 hung").write()


def node_lost(parent: Path) -> Path:
    run = RunBuilder(parent, nodes=3).round().steps(1, 50).wait(30)
    return (
        run.fail(0, GLOO).lose("n2").round(nodes=["n1", "n3"]).steps(40, 60).succeed().close("succeeded", "x").write()
    )


def requeue(parent: Path) -> Path:
    run = RunBuilder(parent).round().steps(1, 50).wait(30).stop(reason="SIGTERM from outside", outcome="stopped")
    run.attempt().round().steps(50, 90).wait(9).fail(2, exit_code=3).stop().round().steps(80, 120)
    return run.succeed().close("succeeded", "all ranks succeeded").write()


def unfinished(parent: Path) -> Path:
    return RunBuilder(parent).round().steps(1, 50).wait(30).fail(2, MemoryError(), log="x\n").write()


SHAPES = [failure, hang, node_lost, requeue, unfinished]


class Damage:
    """Ways in which a file ends up as no reader expects it."""

    def __init__(self, chance: random.Random, outside: Path) -> None:
        self.chance = chance
        self.outside = outside
        self.ways: list[Callable[[Path], None]] = [
            self.delete, self.delete, self.cut, self.cut, self.flip, self.flip, self.folder, self.fifo, self.link,
            self.link_to_secret, self.binary, self.huge, self.long_traceback, self.escapes, self.swap, self.nested,
            self.unreadable, self.foreign,
        ]  # fmt: skip

    def __call__(self, path: Path) -> str:
        way = self.chance.choice(self.ways)
        way(path)
        return way.__name__

    def delete(self, path: Path) -> None:
        path.unlink()

    def cut(self, path: Path) -> None:
        os.truncate(path, self.chance.randrange(path.stat().st_size + 1))

    def flip(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        for _ in range(self.chance.randrange(1, 6)):
            if data:
                data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        path.write_bytes(data)

    def folder(self, path: Path) -> None:
        path.unlink()
        path.mkdir()

    def fifo(self, path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    def link(self, path: Path) -> None:
        path.unlink()
        path.symlink_to(self.chance.choice(["/etc/passwd", "/dev/zero", "/dev/tty", path.name, "/nowhere"]))

    def link_to_secret(self, path: Path) -> None:
        path.unlink()
        path.symlink_to(self.outside)

    def binary(self, path: Path) -> None:
        path.write_bytes(self.chance.randbytes(self.chance.randrange(5000)))

    def huge(self, path: Path) -> None:
        os.truncate(path, 1 << 30)

    def long_traceback(self, path: Path) -> None:
        # 10**6 lines are made once and linked: the reader must bound itself, the test need not write them each time.
        lines = self.outside.with_name("lines")
        if not lines.exists():
            frame = '  File "/w/a.py", line 1, in f\n    f()\n'
            lines.write_text("Traceback (most recent call last):\n" + frame * 500_000 + "RecursionError: deep\n")
        path.unlink()
        os.link(lines, path)

    def escapes(self, path: Path) -> None:
        bad = "\x1b]0;owned\x07\x1b[2J</script><script>alert(1)</script>\u202e\r\n\x9b31m"
        text = path.read_text(errors="replace")
        quoted = json.dumps(bad)[1:-1] if path.suffix == ".json" else bad
        for part in self.chance.sample(["boom", "n1", "n2", "train.py", "crash", "main", "x", "ann"], 3):
            text = text.replace(part, quoted + part)
        path.write_text(text)

    def swap(self, path: Path) -> None:
        others = [p for p in path.parent.iterdir() if p.is_file() and not p.is_symlink() and p.stat().st_size < 1 << 20]
        data = self.chance.choice(others).read_bytes() if others else b""
        path.unlink()
        path.write_bytes(data)

    def nested(self, path: Path) -> None:
        path.write_text('{"schema": ' + "[" * 5000 if self.chance.random() < 0.5 else '{"a":' * 5000)

    def unreadable(self, path: Path) -> None:
        path.chmod(0)

    def foreign(self, path: Path) -> None:
        if os.getuid() == 0:
            os.chown(path, 4002, 4002)


def in_order(path: Path, chance: random.Random) -> dict[str, object]:
    options = {"round_number": chance.choice([None, None, None, 1, 2, 7])}
    options["rank"] = chance.choice([None, None, None, 0, 3])
    return {**options, "every": chance.random() < 0.2}


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A place in memory: a thousand run directories are made and removed."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ftslurm-test-", dir=memory) as name:
        yield Path(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", SHAPES)
def test_any_damage_to_any_files_still_gives_a_report(
    shape: Callable[[Path], Path], quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = quick_path / "outside" / "secret"
    outside.parent.mkdir()
    outside.write_text(json.dumps({"message": SECRET}))
    whole = shape(quick_path / "whole")
    before, deadline, number = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline:
        chance = random.Random(f"{SEED}/{shape.__name__}/{number}")
        path = quick_path / "damaged"
        shutil.copytree(whole, path)
        done = damage(path, chance, outside)
        case = f"seed {SEED}, {shape.__name__} {number}: {done}"
        try:
            check_report(path, chance, case)
        except Exception as error:
            raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
        for each in path.rglob("*"):
            if not each.is_symlink():
                each.chmod(0o700)
        shutil.rmtree(path)
        number += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    with capsys.disabled():
        print(f"[{shape.__name__}: {number} cases, seed {SEED}]", end=" ", flush=True)
    assert grown < GROWTH, f"seed {SEED}: {grown} bytes more after {number} cases"


def damage(path: Path, chance: random.Random, outside: Path) -> list[str]:
    hurt, done = Damage(chance, outside), []
    files = sorted(p for p in path.rglob("*") if p.is_file())
    share = chance.choice([0.05, 0.2, 0.5, 1.0])
    for file in files:
        if chance.random() < share:
            done.append(f"{hurt(file)} {file.relative_to(path)}")
    folders = sorted((p for p in path.rglob("*") if p.is_dir() and not p.is_symlink()), reverse=True)
    for folder in folders:
        if chance.random() < 0.03:
            shutil.rmtree(folder)
            done.append(f"gone {folder.relative_to(path)}")
            if chance.random() < 0.3:
                folder.symlink_to(outside.parent)
    return done


def check_report(path: Path, chance: random.Random, case: str) -> None:
    began = time.monotonic()
    report = make_report(path, now_ns=NOW_NS, **in_order(path, chance))  # type: ignore[arg-type]
    # The page takes as long as all the rest.
    forms = [form for form in FORMATS if form != "html" or chance.random() < 0.2]
    texts = {form: rendered(report, form, page_directory=str(path)) for form in forms}
    took = time.monotonic() - began
    assert took < CASE_S, f"{case}: {took:.1f} s"
    json.loads(texts["json"])
    for form, text in texts.items():
        assert SECRET not in text, f"{case}: {form} shows what a link points to"
        bad = ACTING.search(text)
        assert bad is None, f"{case}: {form} has {bad[0]!r}"
        assert len(text) < 3_000_000, f"{case}: {form} has {len(text)} characters"
    assert "<script>alert" not in texts.get("html", ""), case


def test_the_command_ends_with_0_and_a_text_on_a_directory_that_holds_nothing_but_rubbish(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = failure(tmp_path)
    for file in [p for p in path.rglob("*") if p.is_file()]:
        file.write_bytes(b"\xff\x00{")
    assert main([str(path)]) == 0
    captured = capsys.readouterr()
    assert "no end was recorded" in captured.out
    assert captured.err == ""
