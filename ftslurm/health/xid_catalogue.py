"""Meanings of NVIDIA's driver error numbers (Xid), and their lines in the kernel log (pure).

Source: NVIDIA's Xid catalog, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, and its archive for
GPUs before Ampere. The catalog's immediate action decides the status: a reset of the GPU or a restart of the machine is
a FAIL; a restart of the application is not the node's fault; repaired memory, and links with corrected errors, are a
WARN.
"""

from __future__ import annotations

import re

from ftslurm.dataclasses import dataclass
from ftslurm.records.health import FAIL, OK, WARN

RESET = "Reset the GPU, or have the node drained."
RESET_LATER = "Reset the GPU when convenient."
REBOOT = "Have the node drained and power-cycled."
REPLACE = "Have the GPU inspected: run NVIDIA's field diagnostics."
DEBUG = "Find the error in the program: compute-sanitizer finds out-of-range accesses."
FOLLOW = "Look at the Xid before this one."
_NVLINK = "Look at `nvidia-smi nvlink -e` and at the other end of the link."


@dataclass(frozen=True)
class Meaning:
    """Meaning of one Xid.

    Attributes:
        text: as short as NVIDIA's.
        status: OK (caused by the program, or nothing to do), WARN or FAIL.
        advice: one short sentence.
    """

    text: str
    status: str
    advice: str


def _table() -> dict[int, Meaning]:
    found = {
        8: Meaning("a channel stopped", OK, FOLLOW),
        11: Meaning("invalid or corrupted push buffer stream", OK, DEBUG),
        13: Meaning("graphics engine exception: mostly an access out of range by the program", OK, DEBUG),
        14: Meaning("an injected error", OK, FOLLOW),
        25: Meaning("invalid or illegal push buffer stream", OK, DEBUG),
        31: Meaning("GPU memory page fault: mostly an illegal access by the program", OK, DEBUG),
        32: Meaning("invalid or corrupted push buffer stream: mostly the quality of the PCIe link", WARN, REPLACE),
        37: Meaning("driver firmware error", OK, FOLLOW),
        38: Meaning("driver firmware error", WARN, FOLLOW),
        43: Meaning("the GPU stopped the program for an error of its own", OK, DEBUG),
        44: Meaning("graphics engine fault during a context switch", OK, FOLLOW),
        45: Meaning("the program was taken off the GPU, since it ended or for an earlier error", OK, FOLLOW),
        46: Meaning("the GPU stopped processing", FAIL, RESET),
        48: Meaning("uncorrectable (double-bit) ECC error", FAIL, RESET),
        54: Meaning("auxiliary power is not connected to the GPU", FAIL, "Have the power cables inspected."),
        56: Meaning("display engine error", OK, FOLLOW),
        57: Meaning("error of the video memory's interface", WARN, REPLACE),
        58: Meaning("unstable video memory interface", WARN, REPLACE),
        61: Meaning("internal microcontroller warning", WARN, RESET),
        62: Meaning("internal microcontroller halted", FAIL, RESET),
        63: Meaning("a memory row or page was retired", WARN, RESET_LATER),
        64: Meaning("a memory row or page could not be retired", FAIL, RESET),
        66: Meaning("illegal access by the driver", OK, FOLLOW),
        67: Meaning("illegal access by the driver", OK, FOLLOW),
        69: Meaning("graphics engine class error", OK, DEBUG),
        74: Meaning("NVLink error", FAIL, f"{RESET[:-1]}; the fault may be at the other end of the link."),
        78: Meaning("vGPU could not be started", WARN, "Update driver and firmware."),
        79: Meaning("the GPU has fallen off the bus", FAIL, REBOOT),
        80: Meaning("corrupted data sent to the GPU", OK, DEBUG),
        92: Meaning("high rate of single-bit ECC errors", WARN, REPLACE),
        93: Meaning("the InfoROM's wear limit is reached", OK, "Nothing is to be done now."),
        94: Meaning("contained memory error: it hit one program, which must be started again", WARN, RESET_LATER),
        95: Meaning("uncontained memory error: other programs on the GPU may have been hit", FAIL, RESET),
        106: Meaning("a test message", OK, FOLLOW),
        107: Meaning("a test message", OK, FOLLOW),
        109: Meaning("context switch timed out", FAIL, RESET),
        110: Meaning("security fault", FAIL, REBOOT),
        119: Meaning("the GPU's system processor (GSP) did not answer in time", FAIL, RESET),
        120: Meaning("error in the GPU's system processor (GSP)", FAIL, RESET),
        121: Meaning("corrected errors on the link to the CPU (C2C)", WARN, RESET_LATER),
        125: Meaning("InfoROM file system error", WARN, REPLACE),
        136: Meaning("NVLink could not be trained", FAIL, RESET),
        137: Meaning("illegal access over NVLink, mostly by the program", OK, DEBUG),
        140: Meaning("uncorrectable ECC error that could not be repaired", FAIL, RESET),
        141: Meaning("CUDA fast path error", OK, FOLLOW),
        143: Meaning("the GPU could not be initialised", FAIL, RESET),
        151: Meaning("key rotation error", WARN, "Restart the virtual machine."),
        154: Meaning("the GPU's recovery action changed", WARN, "Look at the recovery action: `nvidia-smi -q`."),
        155: Meaning("NVLink down by software, perhaps intended", WARN, _NVLINK),
        156: Meaning("a faulty part of the GPU was retired", WARN, "Reset the GPU, to bring it into effect."),
        157: Meaning("a faulty part of the GPU could not be retired", WARN, REPLACE),
        158: Meaning("the GPU does not answer (fatal time-out)", FAIL, RESET),
        159: Meaning("error on the coherent link (CHI)", WARN, FOLLOW),
        160: Meaning("a memory channel was retired", WARN, REPLACE),
        161: Meaning("a memory channel could not be retired", WARN, REPLACE),
        162: Meaning("power smoothing is active again", OK, FOLLOW),
        163: Meaning("power smoothing was switched off", WARN, "Look at the temperature."),
        164: Meaning("power smoothing is near the end of its life", WARN, "Plan to replace the GPU."),
        165: Meaning("power smoothing is at the end of its life", WARN, "Plan to replace the GPU."),
        167: Meaning("PCIe fatal time-out", FAIL, REBOOT),
        168: Meaning("GPU memory is reduced: errors in a protected region", WARN, "Switch ECC on."),
        169: Meaning("internal microcontroller halted", FAIL, RESET),
        171: Meaning("uncorrectable ECC error in DRAM", FAIL, RESET),
        172: Meaning("uncorrectable ECC error in SRAM", FAIL, RESET),
    }
    for number in (*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136)):
        found[number] = Meaning("copy engine error", OK, FOLLOW)
    for number in (60, 65, 68, *range(82, 85), 86, 88, 89, *range(96, 106), 139, 142):
        found[number] = Meaning("video or image engine error", OK, FOLLOW)
    for number in range(144, 151):  # only the text shows whether it is fatal
        found[number] = Meaning("NVLink error", WARN, _NVLINK)
    return found


MEANINGS = _table()
"""The Xids in use."""

_UNKNOWN = Meaning("unknown to this version of ftslurm", WARN, "Look it up in NVIDIA's Xid catalog.")
_FATAL = re.compile(r"\b(non-?)?fatal\b", re.IGNORECASE)
_ACTION = re.compile(r"recovery action changed from .*? to 0x([0-9a-f]+) \(([^)]*)\)", re.IGNORECASE)
_ACTIONS_HARMLESS = {0: OK, 5: WARN}  # none; recover the IMEX domain


def meaning(xid: int, text: str = "") -> Meaning:
    """Return an Xid's meaning, more exact with the driver's text; for an unknown number `_UNKNOWN`.

    Args:
        text: the text after the number in the kernel's log; empty if only the number is known.
    """
    known = MEANINGS.get(xid, _UNKNOWN)
    if 144 <= xid <= 150 and (found := _FATAL.findall(text)):
        # The last one is the driver's: before its text is the program's name, which a user chooses.
        return known if found[-1] else Meaning(f"fatal {known.text}", FAIL, RESET)
    if xid == 154 and (action := _ACTION.search(text)):
        status = _ACTIONS_HARMLESS.get(int(action[1], 16), FAIL)
        text = f"the GPU's recovery action is now: {action[2].lower()}"
        return Meaning(text, status, RESET if status == FAIL else FOLLOW)
    return known


@dataclass(frozen=True)
class XidLine:
    """One Xid in the kernel's log.

    Attributes:
        bus_id: of the GPU, as `bus_key` has it.
        text: the driver's text, without the number.
    """

    bus_id: str
    xid: int
    text: str

    @property
    def meaning(self) -> Meaning:
        """What it means."""
        return meaning(self.xid, self.text)


_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)\): (\d+)"
    r"(?:, ?(.*))?"
)


def xid_in(line: str) -> XidLine | None:
    """Return the Xid in a record of /dev/kmsg, None if there is none: the driver's own begin with its name."""
    match = _XID.match(line)
    return XidLine(bus_key(match[1]), int(match[2]), (match[3] or "").strip()) if match else None


def bus_key(bus_id: str) -> str:
    """Return a PCI address in sysfs's form: NVML's domain has eight digits, the driver's log has no function."""
    try:
        *front, bus, device = bus_id.strip().lower().split(":")
        slot, _, function = device.partition(".")
        domain = int(front[-1], 16) if front else 0
        return f"{domain:04x}:{int(bus, 16):02x}:{int(slot, 16):02x}.{int(function or '0', 16):x}"
    except ValueError:
        return bus_id
