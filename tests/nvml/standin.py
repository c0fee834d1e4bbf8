"""Compiles the stand-ins of NVML and CUDA, writes NVML's answers, and runs checks against it in a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("nvml.c")
CUDA = Path(__file__).with_name("cuda.c")
PROGRAM = Path(__file__).with_name("run_checks.py")
HEALTHY = (
    "* ecc 1",
    "* volatile 0",
    "* aggregate 0",
    "* corrected 0",
    "* rows 0 0 0 0",
    "* sram-exceeded 0",
    "* field 230 0",
    "* field 180 0",
    "* field 161 0",
    "* field 162 0",
    "* field 163 0",
    "* temperature 34",
    "* margin 52",
    "* slowdown 87",
    "* shutdown 92",
    "* reasons 1",
    "* performance 0",
    "* generation 5",
    "* max-generation 5",
    "* width 16",
    "* max-width 16",
    "* replays 0",
    "* limit 700000",
    "* default-limit 700000",
    "* mig 0",
    "* fabric 3 0",
    "* links " + " ".join(["1"] * 18),
)
"""An H100 node as it should be."""


def compiler() -> str | None:
    """Return the C compiler's path, None without one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(directory: Path, *defines: str, source: Path = SOURCE, library: str = "libnvidia-ml.so.1") -> Path:
    """Compile a library into a directory; return that directory."""
    path = compiler()
    assert path is not None, "no C compiler"
    directory.mkdir(parents=True, exist_ok=True)
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", *(f"-D{name}" for name in defines)]
    subprocess.run([path, *flags, "-o", directory / library, source], check=True)
    return directory


class Standin:
    """The library's answers, in one file, and the environment in which it is loaded."""

    def __init__(self, library: Path, file: Path, count: int = 8) -> None:
        self.library, self.file, self.count = library, file, count
        self.answer()

    def answer(self, lines: Iterable[str] = (), count: int | None = None) -> None:
        """Answer as a healthy node, except for these lines."""
        text = [f"count {self.count if count is None else count}", *HEALTHY, *lines]
        self.file.write_text("\n".join(text) + "\n")

    def environment(self) -> dict[str, str]:
        """Return the environment for a process that is to load it."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.library), "NVML_STANDIN": str(self.file)}

    def run_checks(
        self,
        names: Iterable[str] | str,
        before: dict[str, Any] | None = None,
        limit_s: float | None = None,
        **context: Any,
    ) -> Result:
        """Run the checks of those names, or of a set, in a process of their own."""
        wanted = names if isinstance(names, str) else list(names)
        request = {"checks": wanted, "before": before or {}, "context": context, "limit_s": limit_s}
        command = [sys.executable, str(PROGRAM)]
        done = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=self.environment(),
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Result(json.loads(done.stdout))


class Result:
    """Verdicts of a run, with its costs."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.took_s: float = result["took_s"]
        self.cpu_s: float = result["cpu_s"]
        self.stuck: list[int] = result["stuck"]
        self.verdicts: dict[str, dict[str, Any]] = {verdict["check"]: verdict for verdict in result["verdicts"]}

    @property
    def facts(self) -> dict[str, Any]:
        """The facts, to give to the next look."""
        return {name: verdict["facts"] for name, verdict in self.verdicts.items() if verdict["facts"] is not None}

    def findings(self) -> list[tuple[str, str, str, str]]:
        """All findings: check, status, subject, text."""
        return [
            (name, finding["status"], finding["subject"], finding["text"])
            for name, verdict in self.verdicts.items()
            for finding in verdict["findings"]
        ]


def wait_until_gone(pids: Iterable[int], seconds: float = 5.0) -> bool:
    """Return whether those processes end in that time."""
    deadline = time.monotonic() + seconds
    left = set(pids)
    while left and time.monotonic() < deadline:
        left = {pid for pid in left if Path(f"/proc/{pid}").exists()}
        time.sleep(0.01)
    return not left
