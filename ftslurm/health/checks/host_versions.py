"""Versions of kernel, system and drivers, for comparison: nodes of one job should not differ."""

from __future__ import annotations

from ftslurm.health import sysfs
from ftslurm.health.check import QUICK, THOROUGH, Check, Context, never
from ftslurm.health.verdict import Json, Judgement

_MODULES = ("nvidia", "amdgpu", "mlx5_core", "lustre")
"""Out-of-tree drivers, with versions of their own."""


def fetch(context: Context) -> Json:
    """Read the versions."""
    root = context.root
    modules = {name: sysfs.text(f"{root}/sys/module/{name}/version") for name in _MODULES}
    return {
        "kernel": sysfs.text(f"{root}/proc/sys/kernel/osrelease"),
        "system": _field(sysfs.text(f"{root}/etc/os-release"), "PRETTY_NAME", "="),
        "cpu": _field(sysfs.text(f"{root}/proc/cpuinfo"), "model name", ":"),
        "modules": {name: version for name, version in modules.items() if version},
    }


def _field(text: str | None, name: str, sign: str) -> str | None:
    for line in (text or "").splitlines():
        key, _, value = line.partition(sign)
        if key.strip() == name:
            return value.strip().strip('"')
    return None


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Summarise them."""
    parts = [facts["system"], f"Linux {facts['kernel']}" if facts["kernel"] else None, facts["cpu"]]
    parts += [f"{name} {version}" for name, version in facts["modules"].items()]
    return Judgement(", ".join(one for one in parts if one) or "unknown")


CHECK = Check(
    name="host-versions",
    about="kernel, system and drivers, for comparing nodes",
    sets=frozenset({QUICK, THOROUGH}),
    limit_s=2.0,
    fetch=fetch,
    judge=judge,
    may_hang=never,
)
