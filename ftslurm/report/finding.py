"""One finding of a health check as a line of text (pure)."""

from __future__ import annotations

from ftslurm.report.style import Json, Style
from ftslurm.report.wording import names, safe

NODES_SHOWN = 3


def finding(each: Json, style: Style) -> str:
    """``n17: GPU 3: 2 uncorrected ECC errors (first seen 03-01 03:12:05, 40s before rank 139 failed)``."""
    where = nodes_of(each)
    subject = f"{safe(each['subject'])}: " if each["subject"] else ""
    relation = f", {each['relation']['text']}" if each["relation"] is not None else ""
    warning = "warning: " if each["status"] == "warn" else ""
    return f"{where}: {warning}{subject}{safe(each['text'])} (first seen {style.date(each['since_ns'])}{relation})"


def nodes_of(each: Json) -> str:
    """``n17``, ``39 nodes (n1, n2, n3, ...)``."""
    number = each["node_count"]
    if number == 1:
        return safe(each["node"])
    return f"{number} nodes ({names(each['nodes'][:NODES_SHOWN])}{', ...' if number > NODES_SHOWN else ''})"
