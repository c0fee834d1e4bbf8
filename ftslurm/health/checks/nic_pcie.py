"""Do the NICs have their full PCIe link?

A link with fewer lanes, or a lower speed, after a bad start of the node silently halves a NIC's bandwidth. NICs do not
reduce their link to save power, as GPUs do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ftslurm.health import infiniband, sysfs
from ftslurm.health.check import QUICK, THOROUGH, Absent, Check, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import WARN


def fetch(context: Context) -> Json:
    """Read speed and width of the link of each NIC, and the maximum of both ends."""
    found: dict[str, Json] = {}
    for device, slot, *_ in infiniband.directories(context.root):
        above = f"{context.root}{infiniband.CLASS}/{device}"
        end = os.path.realpath(f"{above}/device")
        speed, width = _speed(end, "current"), sysfs.number(end, "current_link_width")
        if slot.address in found or not speed or not width:
            continue
        # The slot may support less than the card by design: both ends must support more.
        ends = (end, os.path.dirname(end))
        speeds = [able for at in ends if (able := _speed(at, "max"))]
        widths = [able for at in ends if (able := sysfs.number(at, "max_link_width"))]
        found[slot.address] = {
            "name": device,
            "board": sysfs.text(above, "board_id") or "",
            "gts": speed,
            "width": width,
            "most_gts": min(speeds, default=speed),
            "most_width": min(widths, default=width),
        }
    if not found:
        raise Absent("no InfiniBand or RoCE device with a PCIe link here")
    return {"nics": found}


def _speed(device: str, which: str) -> float | None:
    # "16.0 GT/s PCIe", "8 GT/s" (older kernels), "Unknown".
    first = (sysfs.text(device, f"{which}_link_speed") or "").partition(" ")[0]
    try:
        return float(first)
    except ValueError:
        return None


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge by the maximum of both ends, and by the other NICs of the same product."""
    nics = facts["nics"]
    found = [_reduced(address, nic) for address, nic in nics.items() if _is_reduced(nic, list(nics.values()))]
    plural = "s" * (len(nics) > 1)
    links = ", ".join(sorted({_link(nic["gts"], nic["width"]) for nic in nics.values()}))
    return Judgement(f"{len(nics)} NIC{plural} at {links}", tuple(found))


def _is_reduced(nic: Json, nics: Sequence[Json]) -> bool:
    if nic["gts"] >= nic["most_gts"] and nic["width"] >= nic["most_width"]:
        return False
    # All of a product equally: the machine's wiring (for example lanes shared between hosts), no fault.
    links = [(one["gts"], one["width"]) for one in nics if one["board"] == nic["board"]]
    return len(links) == 1 or len(set(links)) > 1


def _reduced(address: str, nic: Json) -> Finding:
    text = f"its PCIe link is {_link(nic['gts'], nic['width'])}, both ends can do "
    text += _link(nic["most_gts"], nic["most_width"])
    return Finding(
        WARN, f"{nic['name']} ({address})", text, "Start the node anew; if that does not help, reseat the NIC."
    )


def _link(gts: float, width: int) -> str:
    return f"{gts:g} GT/s x{width}"


CHECK = Check(
    name="nic-pcie",
    about="InfiniBand and RoCE NICs have all of their PCIe link",
    sets=frozenset({QUICK, THOROUGH}),
    limit_s=infiniband.LIMIT_S,
    fetch=fetch,
    judge=judge,
    late_text="a NIC hangs on PCIe",
    late_advice="Look at the node's kernel log for PCIe errors.",
    may_hang=infiniband.are_there,
)
