"""Is the NIC nearest to each GPU up?

On training machines, each GPU (or two of them) shares a PCIe switch with a NIC, and their data takes that path. If
that NIC is down, NCCL uses one beyond the processor, or one that another GPU needs: slower, not broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ftslurm.health import infiniband, pci
from ftslurm.health.check import QUICK, THOROUGH, Absent, Context
from ftslurm.health.checks.nic_ports import USED
from ftslurm.health.infiniband import Port
from ftslurm.health.pci import NEARNESS, PIX, PXB, Slot
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import WARN

_SWITCH = (PIX, PXB)
"""Nearer than the processor: intended by the machine's design."""


def fetch(context: Context) -> Json:
    """Find the nearest NICs of each GPU, and the nearest that is up."""
    gpus = pci.gpus(context.root)
    if not gpus:
        raise Absent("no GPU on PCI here")
    ports = infiniband.ports(context.root)
    if not ports:
        raise Absent("no InfiniBand or RoCE device here")
    places = {device: slot for device, slot, *_ in infiniband.directories(context.root)}
    found = [_gpu(number, gpu, ports, places) for number, gpu in enumerate(gpus)]
    return {"gpus": found, "up": [gpu["up"] for gpu in found]}


def _gpu(number: int, gpu: Slot, ports: Sequence[Port], places: dict[str, Slot]) -> Json:
    how = {port.key: pci.relation(gpu, places[port.device]) for port in ports}
    nearest = min(how.values(), key=NEARNESS.__getitem__)
    near = [port for port in ports if how[port.key] == nearest]
    up = min((port for port in ports if port.active), key=lambda port: NEARNESS[how[port.key]], default=None)
    return {
        "number": number,
        "pci": gpu.address,
        "how": nearest,
        "nics": [{"name": port.name, "state": port.state, "used": (port.carried or 0) > USED} for port in near],
        "up": None if up is None else how[up.key],
        "up_name": None if up is None else up.name,
    }


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge whether a GPU's own NIC is up."""
    gpus = facts["gpus"]
    was = {gpu["pci"]: gpu["up"] for gpu in (before or {}).get("gpus", ())}
    found = []
    for gpu in gpus:
        if gpu["how"] not in _SWITCH or gpu["up"] == gpu["how"]:
            continue
        # A card without any traffic is no evidence, unless the other GPUs show the machine's design.
        others = [other for other in gpus if other is not gpu]
        meant = sum(other["up"] in _SWITCH for other in others) * 2 > len(others)
        if meant or was.get(gpu["pci"]) == gpu["how"] or any(nic["used"] for nic in gpu["nics"]):
            found.append(_far(gpu))
    ways = Counter(gpu["up"] or "none" for gpu in gpus)
    listed = ", ".join(f"{way} of {count}" for way, count in ways.items())
    plural = "s" * (len(gpus) > 1)
    return Judgement(f"{len(gpus)} GPU{plural}; the nearest NIC that is up: {listed}", tuple(found))


def _far(gpu: Json) -> Finding:
    nics = ", ".join(f"{nic['name']} ({nic['state']})" for nic in gpu["nics"])
    instead = f"the nearest that is up, {gpu['up_name']}, is {gpu['up']}" if gpu["up"] else "none is up"
    text = f"its NIC {nics}, {gpu['how']}, is not up; {instead}"
    advice = "Repair the NIC's link: until then this GPU's data takes a longer way."
    return Finding(WARN, f"GPU {gpu['number']} ({gpu['pci']})", text, advice)


CHECK = infiniband.check("nic-nearest", "the NIC next to each GPU is up", (QUICK, THOROUGH), fetch, judge)
