"""All checks of ftslurm, in display order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

from ftslurm.health.check import Check

MODULES: tuple[str, ...] = (
    # GPU
    "gpu_driver",
    "gpu_count",
    "gpu_recovery",
    "gpu_ecc",
    "gpu_rows",
    "gpu_nvlink",
    "gpu_pcie",
    "gpu_clocks",
    "gpu_processes",
    "amd_count",
    "amd_ras",
    # NICs
    "nic_ports",
    "nic_errors",
    "nic_pcie",
    "nic_nearest",
    # storage
    "storage_paths",
    "storage_round_trip",
    "storage_lustre",
    # host
    "host_memory",
    "host_processes",
    "host_kernel_log",
    "host_clock",
    "host_limits",
    "host_frequency",
    "host_versions",
    # network
    "network_interface",
    "network_names",
    "network_reach",
    # the user's own
    "own_commands",
)
"""Modules of `ftslurm.health.checks`; each has one check, `CHECK`."""


def builtin() -> list[Check]:
    """Return ftslurm's own checks."""
    return [import_module(f"ftslurm.health.checks.{name}").CHECK for name in MODULES]


def all_checks() -> list[Check]:
    """Return ftslurm's checks and those of the site."""
    from ftslurm.health.plugins import load

    known = builtin()
    return [*known, *load(known)]


def chosen(checks: Iterable[Check], set_: str, skip: Sequence[str] = ()) -> list[Check]:
    """Return the checks of a set, without the skipped ones."""
    return [check for check in checks if set_ in check.sets and check.name not in skip]
