"""`ftslurm template`: print a ready-to-submit batch script."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ftslurm.terminal import complain


def directory() -> str | None:
    """Return where the templates are: installed with the package, or beside it in a checkout."""
    import sysconfig

    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "sbatch_templates")
    installed = os.path.join(sysconfig.get_path("data"), "share", "ftslurm", "sbatch_templates")
    return next((path for path in (beside, installed) if os.path.isdir(path)), None)


def main(arguments: Sequence[str]) -> int:
    """Run `ftslurm template [NAME]`; return its exit code."""
    where = directory()
    names = sorted(name.removesuffix(".sbatch") for name in os.listdir(where)) if where else []
    known = ", ".join(names) or "none (this installation has lost them)"
    if list(arguments) in ([], ["-h"], ["--help"]):
        print(f"usage: ftslurm template NAME > job.sbatch\ntemplates: {known}")
        return 0
    if len(arguments) != 1 or arguments[0] not in names or where is None:
        complain(f"ftslurm template: expected one of {known}, found {' '.join(arguments)}")
        return 2
    with open(os.path.join(where, f"{arguments[0]}.sbatch")) as file:
        print(file.read(), end="")
    return 0
