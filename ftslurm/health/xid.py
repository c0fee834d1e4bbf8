"""Waits for errors that NVIDIA's driver reports; prints each as a line of JSON: ``python -m ftslurm.health.xid``.

A separate program: waiting is a call into the driver that may never return, and must not block others.
It prints nothing and exits at once if there are no GPUs with events, and dies with its parent.

A line: {"time_ns": wall clock, "gpu": number, "bus_id": address, "xid": number or null (an ECC event without one),
"text", "status": "ok" | "warn" | "fail", "advice": one sentence}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from ftslurm import kernel
from ftslurm.health import nvml
from ftslurm.health.check import Absent
from ftslurm.health.verdict import Json
from ftslurm.health.xid_catalogue import RESET, bus_key, meaning
from ftslurm.records.health import FAIL
from ftslurm.terminal import print_error

XID, DOUBLE_BIT = 0x8, 0x2  # nvmlEventTypeXidCriticalError, nvmlEventTypeDoubleBitEccError
WAIT_MS = 3_600_000
"""Time-out of one wait call; the next follows at once."""
TOO_FAST_S = 0.5
"""Delay after an error of the wait call itself, which would otherwise keep a core busy."""
GIVE_UP = 20
"""Consecutive errors of the wait call after which the watch ends."""


def line(event_type: int, data: int, gpu: int | None, bus_id: str | None, time_ns: int) -> Json:
    """Return the printed form of one event; pure."""
    if event_type & XID:
        known = meaning(data)
        xid, text, status, advice = data, known.text, known.status, known.advice
    else:
        xid, text, status, advice = None, "uncorrectable (double-bit) ECC error", FAIL, RESET
    return {
        "time_ns": time_ns,
        "gpu": gpu,
        "bus_id": bus_id,
        "xid": xid,
        "text": text,
        "status": status,
        "advice": advice,
    }


def watch(driver: nvml.Nvml, report: Callable[[Json], None]) -> None:
    """Wait for events of all of the job's GPUs, until no GPU with events is left."""
    pynvml = driver.pynvml
    try:
        gpus = nvml.of_job([gpu for gpu in driver.gpus() if gpu.handle is not None], os.environ)
        known_gpus = {_address(gpu.handle): (gpu.number, _bus_id(gpu)) for gpu in gpus}
        errors = 0
        while errors < GIVE_UP and (events := _registered(pynvml, gpus)) is not None:
            errors = _until_error(pynvml, events, errors, known_gpus, report)
            pynvml.nvmlEventSetFree(events)
            # With a lost GPU in the set every wait returns at once: continue without it.
            for gpu in [gpu for gpu in gpus if _lost(gpu)]:
                gpus.remove(gpu)
                report(line(XID, 79, *known_gpus[_address(gpu.handle)], time.time_ns()))
            time.sleep(TOO_FAST_S)
    except pynvml.NVMLError:
        return


def _registered(pynvml: Any, gpus: list[nvml.Gpu]) -> Any:
    """Return a set of the GPUs' events; None if none of them supports events."""
    events, count = pynvml.nvmlEventSetCreate(), 0
    for gpu in gpus:
        try:
            wanted = pynvml.nvmlDeviceGetSupportedEventTypes(gpu.handle) & (XID | DOUBLE_BIT)
            if wanted:
                pynvml.nvmlDeviceRegisterEvents(gpu.handle, wanted, events)
                count += 1
        except pynvml.NVMLError:
            continue  # the checks report it
    return events if count else None


def _until_error(
    pynvml: Any, events: Any, errors: int, known_gpus: dict[int | None, Any], report: Callable[[Json], None]
) -> int:
    """Print events until the wait call fails; return the number of consecutive failures."""
    wait = getattr(pynvml, "nvmlEventSetWait_v2", None) or pynvml.nvmlEventSetWait
    while True:
        try:
            event = wait(events, WAIT_MS)
        except pynvml.NVMLError_Timeout:
            errors = 0
            continue
        except pynvml.NVMLError:
            return errors + 1
        errors = 0
        number, bus_id = known_gpus.get(_address(event.device), (None, None))
        report(line(int(event.eventType), int(event.eventData), number, bus_id, time.time_ns()))


def _lost(gpu: nvml.Gpu) -> bool:
    gpu.errors.clear()
    gpu.answers.clear()
    gpu.query("temperature", "Temperature", 0)
    return "GPU_IS_LOST" in gpu.errors.values()


def _bus_id(gpu: nvml.Gpu) -> str | None:
    pci = gpu.query("pci", "PciInfo_v3 PciInfo")
    return bus_key(nvml.text(pci.busId) or "") if pci is not None else None


def _address(handle: Any) -> int | None:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value


def main() -> int:
    """Print events until the parent ends."""
    parent = os.getppid()
    kernel.die_with_parent()
    if os.getppid() != parent:
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the agent, not with its terminal
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)

    def report(event: Json) -> None:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()

    try:
        watch(nvml.started(), report)
    except (Absent, nvml.Problem):
        pass
    except Exception as error:  # an unexpected answer of a driver needs no traceback
        print_error(f"ftslurm: Xid events cannot be watched: {type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
