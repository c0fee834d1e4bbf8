"""One command of Slurm: it is run within a time-out, and its failure becomes an error that names the cause."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ftslurm.slurm.errors import (
    SlurmCommandMissing,
    SlurmError,
    SlurmRefused,
    SlurmTimeout,
    SlurmUnknownJob,
    SlurmUnreachable,
)
from ftslurm.text import duration

TIMEOUT_S = 20.0
"""With slurmctld down `scontrol show job` itself gives up after 8 s (22.05, MessageTimeout 10, no backup)."""

_PREFIX = r"^[a-z_]+: (?:error: |fatal: )+|^slurm_load_[a-z]+ error: "
_NO_SUCH_JOB = ("Invalid job id specified", "Invalid job array task id")
_UNREACHABLE = (
    "Unable to contact slurm",
    "Unexpected message received",  # `scontrol requeue` with slurmctld down (22.05)
    "Connection refused",
    "Connection timed out",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Problem talking to the database",
    "configuration source",
    "configuration file",
    "DNS SRV lookup",
)


def has_program(name: str, env: Mapping[str, str]) -> bool:
    """Return whether a program of Slurm's is on the PATH."""
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    return any(os.access(os.path.join(folder, name), os.X_OK) for folder in folders if folder)


class Answer(NamedTuple):
    """Result of a command: exit status (negative: the signal that killed it) and its output."""

    status: int
    stdout: str
    stderr: str


Runner = Callable[[Sequence[str], Mapping[str, str], float], Answer]


def run_command(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
    """Run a command without input, for at most `timeout_s` seconds.

    Raises:
        SlurmCommandMissing: it could not be started.
        SlurmTimeout: it was killed at the time-out.
    """
    import subprocess

    try:
        done = subprocess.run(
            command, env=env, timeout=timeout_s, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except FileNotFoundError:
        raise SlurmCommandMissing(
            f"{command[0]} was not found on PATH={env.get('PATH', '')!a:.200}: expected Slurm's commands here "
            "(containers usually lack them)",
            f"{command[0]} is not on PATH",
        ) from None
    except OSError as error:
        short = f"{command[0]} cannot be started: {error.strerror}"
        raise SlurmCommandMissing(f"`{_command_text(command)}` could not be started: {error}", short) from None
    except subprocess.TimeoutExpired:
        late = f"did not answer within {duration(timeout_s)}; check that slurmctld (slurmdbd) runs"
        short = f"{command[0]}: no answer within {duration(timeout_s)}"
        raise SlurmTimeout(f"`{_command_text(command)}` {late}", short) from None
    return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def failure(command: Sequence[str], answer: Answer) -> SlurmError:
    """Return the error of a failed command (pure)."""
    if answer.status < 0:
        return SlurmError(f"`{_command_text(command)}` was killed by signal {-answer.status}")
    text = answer.stderr.strip() or answer.stdout.strip() or "it printed nothing"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = " / ".join(lines)
    # Without the command's own name in front of its last, decisive line.
    short = f"{command[0]}: {re.sub(_PREFIX, '', lines[-1])}"
    message = f"`{_command_text(command)}` failed (exit {answer.status}): {ascii(reason)[1:-1]:.300}"
    if no_such_job(answer):
        return SlurmUnknownJob(message, short)
    if any(part in text for part in _UNREACHABLE):
        return SlurmUnreachable(f"{message}; check SLURM_CONF, and that slurmctld (slurmdbd) runs", short)
    return SlurmRefused(message, short)


def no_such_job(answer: Answer) -> bool:
    """Return whether `scontrol show job` found no job; for an array task that is on stdout ("Job 12_9 not found")."""
    not_found = answer.stdout.startswith("Job ") and answer.stdout.rstrip().endswith(" not found")
    return not_found or any(part in answer.stderr for part in _NO_SUCH_JOB)


def _command_text(command: Sequence[str]) -> str:
    return " ".join(command[:5])[:120]
