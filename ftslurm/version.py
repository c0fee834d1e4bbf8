"""`ftslurm --version`; with `-v` also of what it works with here: Python, torch, Slurm, NVML. For bug reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from ftslurm import __version__
from ftslurm.terminal import print_error, show
from ftslurm.text import one_line

SLURM_S, TORCH_S, NVML_S = 5.0, 60.0, 10.0
"""Time-outs: the import of torch reads a gigabyte from a filesystem that may be slow; a driver may hang."""
# Version of torch as the workers would import it, and the CUDA or ROCm that it was built for.
TORCH = (
    "import torch; v = torch.version; "
    "print(torch.__version__, f'(CUDA {v.cuda})' if v.cuda else f'(ROCm {v.hip})' if v.hip else '(CPU)')"
)
NVML = (
    "import pynvml as n; n.nvmlInit(); text = lambda value: value.decode() if isinstance(value, bytes) else value; "
    "print(text(n.nvmlSystemGetNVMLVersion()), f'(driver {text(n.nvmlSystemGetDriverVersion())},', "
    "f'{n.nvmlDeviceGetCount()} GPUs)')"
)

Run = Callable[[Sequence[str], float], "tuple[int, str] | str"]
"""Runs a command for so many seconds; returns its exit code and output, or why there is none."""


def main(argv: Sequence[str], run: Run | None = None) -> int:
    """Run `ftslurm --version [-v]`; return its exit code."""
    if list(argv) not in ([], ["-v"], ["--verbose"]):
        print_error(f"ftslurm --version: expected nothing or -v, found {' '.join(argv)}")
        return 2
    show(f"ftslurm {__version__}\n")
    if argv:
        for line in details(os.environ, run or _run):
            show(f"{line}\n")
    return 0


def details(environ: Mapping[str, str], run: Run) -> list[str]:
    """Return the versions of what ftslurm works with, one line each.

    Args:
        environ: PYTHON_EXEC names the workers' Python, as for `ftslurm run`.
        run: runs a command.
    """
    workers = environ.get("PYTHON_EXEC") or sys.executable
    system = os.uname()
    own = ".".join(map(str, sys.version_info[:3]))
    lines = [f"Python {own} ({sys.executable})"]
    if workers != sys.executable:
        lines.append(_line("workers' Python", run([workers, "--version"], SLURM_S), f"({workers})"))
    lines.append(_line("workers' torch", run([workers, "-c", TORCH], TORCH_S)))
    lines.append(_line("Slurm", run(["scontrol", "--version"], SLURM_S)))
    lines.append(_line("NVML", run([sys.executable, "-c", NVML], NVML_S)))
    return [*lines, f"{system.sysname} {system.release} {system.machine}"]


def _line(name: str, found: tuple[int, str] | str, more: str = "") -> str:
    if isinstance(found, str):
        return f"{name}: {one_line(found, 120)}"
    code, output = found
    last = next((line for line in reversed(output.splitlines()) if line.strip()), f"exit code {code}")
    text = one_line(last.removeprefix("slurm ").removeprefix("slurm-wlm ").removeprefix("Python "), 120)
    return f"{name}: none ({text})" if code else f"{name} {text} {more}".rstrip()


def _run(command: Sequence[str], limit_s: float) -> tuple[int, str] | str:
    import subprocess

    from ftslurm.text import duration

    try:
        done = subprocess.run(
            command,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            # The commands import nothing from the current directory.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
    except FileNotFoundError:
        return "none (not on PATH)"
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"no answer within {duration(limit_s)}"
    return done.returncode, done.stdout.decode(errors="replace")
