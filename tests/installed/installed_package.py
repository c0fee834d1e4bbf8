"""What the tests of the installed package share."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def clean_environment(**extra: str) -> dict[str, str]:
    """Return this environment without what points to the checkout, to Slurm, or to settings of ftslurm."""
    dropped = ("FTSLURM_", "SLURM", "PYTHON", "VIRTUAL_ENV", "MYPY")
    return {**{k: v for k, v in os.environ.items() if not k.startswith(dropped)}, **extra}
