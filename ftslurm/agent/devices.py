"""Number of workers for `gpu`, `cpu` and `auto` on this node, without importing torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ftslurm.boot import module_command
from ftslurm.dataclasses import dataclass
from ftslurm.terminal import UsageError
from ftslurm.text import duration, plural

NVML_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Slots:
    """Number of workers on this node, and why `auto` has chosen it; None: it had no choice."""

    count: int
    choice: str | None = None


def resolve_slots(
    text: str,
    environment: Mapping[str, str],
    gpus: Callable[[], tuple[int, str]],
    cpus: int,
    xpus: Callable[[], tuple[int, str]] = lambda: (0, "not counted"),
) -> Slots:
    """Return the number of workers for this node.

    Args:
        text: `--nproc-per-node`, already checked.
        environment: CUDA_VISIBLE_DEVICES and its counterparts limit the count.
        gpus: counts the GPUs of the node; the text is the reason if there is none.
        cpus: processors that this process may use.
        xpus: counts Intel's GPUs that a program may use, as `gpus`.

    Raises:
        UsageError: `gpu` or `xpu` where there is none.
    """
    if text.isdigit():
        return Slots(int(text))
    if text == "cpu":
        return Slots(cpus)
    if text == "xpu":
        count, why = xpus()
        if not count:
            found = f"no Intel GPU found on {os.uname().nodename} ({why})"
            raise UsageError(f"--nproc-per-node xpu: {found}; give a number, or cpu")
        return Slots(count)
    present, why = gpus()
    count = _visible(environment, present)
    if text == "auto":
        found = plural(present, "GPU") if present else "no GPU"
        hidden = f", {_limit(environment)} allows {count or 'none'}" if count != present else ""
        return Slots(count or cpus, f"{found}{hidden}: {plural(count or cpus, 'worker')} per node")
    if count:
        return Slots(count)
    if present:
        raise UsageError(
            f"--nproc-per-node gpu: {present} GPUs found, but {_limit(environment)} allows none; "
            "ask Slurm for GPUs (--gpus-per-node)"
        )
    raise UsageError(f"--nproc-per-node gpu: no GPU found on {os.uname().nodename} ({why}); give a number, or cpu")


def _limit(environment: Mapping[str, str]) -> str | None:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    return next((name for name in names if name in environment), None)


def _visible(environment: Mapping[str, str], present: int) -> int:
    """Return how many of the `present` GPUs are visible to a program."""
    limit = _limit(environment)
    if limit is None:
        return present
    count = 0
    for entry in (part.strip() for part in environment[limit].split(",")):
        # As in CUDA: the first entry that names no device ends the list.
        if not entry or entry.startswith("-") or entry == "NoDevFiles" or (entry.isdecimal() and int(entry) >= present):
            break
        count += 1
    return min(present, count)


def count_gpus(python: str, sysfs: str = "/sys") -> tuple[int, str]:
    """Return the number of GPUs in this machine by NVML, else of AMD's by sysfs, and the reason if there is none.

    NVML is loaded in a separate process: a wedged driver may hang it, and its library is 5 MB that the agent does
    not need.
    """
    count, why = _counted_by(module_command(python, "ftslurm.agent.devices"), "NVML")
    if count:
        return count, ""
    amd = _count_amd(sysfs)
    return amd, "" if amd else why


def count_xpus(python: str) -> tuple[int, str]:
    """Return the number of Intel GPUs that torch finds, and the reason if there is none.

    Only its Level Zero runtime knows which ones a program may use; nothing else here needs torch.
    """
    return _counted_by([python, "-c", "import torch; print(torch.xpu.device_count())"], "torch")


def _counted_by(command: Sequence[str], what: str) -> tuple[int, str]:
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVML_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return 0, f"{what} did not respond within {duration(NVML_TIMEOUT_S)}: the driver hangs"
    except OSError as error:
        return 0, f"{command[0]}: {error.strerror}"
    last = (done.stdout.strip() or done.stderr.strip() or f"{what} ended with code {done.returncode}").splitlines()[-1]
    return (int(last), f"{what} counts none") if last.isdecimal() else (0, last.removeprefix("none: "))


def _count_amd(sysfs: str) -> int:
    """Count the nodes of the kernel's topology (kfd) that are GPUs: their gpu_id is not 0."""
    count = 0
    base = os.path.join(sysfs, "class/kfd/kfd/topology/nodes")
    try:
        nodes = os.listdir(base)
    except OSError:
        return 0
    for node in nodes:
        try:
            with open(os.path.join(base, node, "gpu_id")) as file:
                count += file.read().strip() not in ("", "0")
        except OSError:
            # The job's cgroup hides this one; the others count.
            continue
    return count


def _print_nvml_count() -> None:
    """Print the number of NVIDIA GPUs that NVML counts, or "none: " and the reason."""
    try:
        import pynvml

        pynvml.nvmlInit()
        print(pynvml.nvmlDeviceGetCount())
    except Exception as error:
        print(f"none: {error}")


if __name__ == "__main__":
    _print_nvml_count()
