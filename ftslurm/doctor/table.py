"""The diagnosis as text and as JSON (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftslurm.doctor.diagnose import Diagnosis
from ftslurm.doctor.findings import SEVERITIES, WARNING, WRONG, Finding, median, some
from ftslurm.doctor.probes.resolve import is_loopback
from ftslurm.report.wording import safe

SCHEMA, VERSION = "ftslurm/doctor-report", 1
ROWS = 16
ALIKE = 4
LEAST = 6
HEAD = (
    ("", "seen after", "", "by plain stat", "", "per second", "", "", "", "", ""),
    ("node", "new", "renamed", "new", "renamed", "publish", "to disk", "read", "clock", "free", "resolves to"),
)
LEFT = (0, 10)


def render(diagnosis: Diagnosis, took_s: float) -> str:
    """Return the text: the verdict, findings with advice, the nodes, the proofs."""
    lines = [_verdict(diagnosis, took_s), *_mounts(diagnosis)]
    lines += _findings(diagnosis)
    rows = _ordered(diagnosis)
    measured = [node for node in rows if diagnosis.results[node].get("rate") or diagnosis.delays.get(node)]
    if measured:
        lines += ["", *_table(diagnosis, measured)]
    proofs = _proofs(diagnosis)
    # Paths and host names may contain any text.
    return "".join(f"{safe(line)}\n" for line in (*lines, *(["", *proofs] if proofs else [])))


def _verdict(diagnosis: Diagnosis, took_s: float) -> str:
    count = len(diagnosis.expected)
    nodes = "1 node" if count == 1 else f"{count} nodes"
    wrong = sum(finding.severity == WRONG for finding in diagnosis.findings)
    others = sum(finding.severity == WARNING for finding in diagnosis.findings)
    warnings = f", {others} warning{'s' * (others != 1)}" if others else ""
    said = f"WRONG, {wrong} finding{'s' * (wrong != 1)}{warnings}" if wrong else f"fine{warnings}"
    return f"ftslurm doctor: {diagnosis.directory}: {said} ({nodes}, {took_s:.1f} s)"


def _mounts(diagnosis: Diagnosis) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for node, result in diagnosis.results.items():
        place = result.get("place") or {}
        if place.get("fs_type"):
            text = f"{place['fs_type']} {place['mount_source']} on {place['mount_point']} ({place['options']})"
            owner = f"; uid {place['owner']}, mode {place['mode']:04o}" if "owner" in place else ""
            kinds.setdefault(text + owner, []).append(node)
    shown = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    if len(shown) == 1:
        return [f"  {shown[0][0]}"]
    # Client addresses and the like differ from node to node; a wrong mount is a finding.
    return [f"  {some(nodes, 3)}: {text}" for text, nodes in shown[:3]] + (
        [f"  and {len(shown) - 3} more kinds of mount (--json has them all)"] if len(shown) > 3 else []
    )


def _findings(diagnosis: Diagnosis) -> list[str]:
    lines: list[str] = []
    shown: dict[tuple[str, str], int] = {}
    for finding in diagnosis.findings:
        kind = (finding.severity, finding.probe)
        shown[kind] = shown.get(kind, 0) + 1
        if shown[kind] <= ALIKE:
            lines += _finding(finding, len(diagnosis.expected))
    for (severity, probe), count in shown.items():
        if count > ALIKE:
            lines.append(f"  {severity:<8} and {count - ALIKE} more like these about {probe!r} (--json has them all)")
    return lines


def _finding(finding: Finding, count: int) -> list[str]:
    where = (
        "" if not finding.nodes else "all nodes: " if 1 < count == len(finding.nodes) else f"{some(finding.nodes)}: "
    )
    label = finding.severity.upper() if finding.severity == WRONG else finding.severity
    return [f"  {label:<8} {where}{finding.text}", f"  {'':<8} -> {finding.advice}"]


def _ordered(diagnosis: Diagnosis) -> list[str]:
    """Return the nodes with a result, those with findings first, then the slowest of the others."""
    order = list(diagnosis.results)

    def key(node: str) -> tuple[int, float, int]:
        worst = min(
            (SEVERITIES.index(f.severity) for f in diagnosis.findings if node in f.nodes), default=len(SEVERITIES)
        )
        all_over = len([f for f in diagnosis.findings if len(f.nodes) == len(order)]) == len(diagnosis.findings)
        delays = diagnosis.delays.get(node)
        late = (delays.renamed or 0.0) + (delays.new or 0.0) if delays else 0.0
        many = len(order) > ROWS
        return (0 if all_over else worst, -late if many else 0.0, order.index(node))

    return sorted(order, key=key)


def _table(diagnosis: Diagnosis, nodes: Sequence[str]) -> list[str]:
    rows = [_row(diagnosis, node) for node in nodes[:ROWS]]
    table = [*HEAD, *rows]
    if len(nodes) > ROWS:
        table.append(_middle(diagnosis, nodes))
    widths = [max(LEAST, *(len(row[column]) for row in table[1:])) for column in range(len(HEAD[1]))]
    lines = []
    for row in table:
        cells = [
            text.ljust(width) if column in LEFT else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    lines[0] = _groups(widths)
    if len(nodes) > ROWS:
        lines.append(f"  {len(nodes)} nodes, the {ROWS} most relevant above (--json has them all)")
    if any(cell.startswith(">") for row in rows for cell in row[3:5]):
        lines.append("  > not seen in that time; ftslurm opens the directory first and does not wait for that")
    return lines


def _groups(widths: Sequence[int]) -> str:
    """Set the words of the upper head over the middle of the columns that they are about."""
    lines = " " * (2 + widths[0])
    for title, columns in (("seen after", (1, 3)), ("by plain stat", (3, 5)), ("per second", (5, 8))):
        width = sum(widths[columns[0] : columns[1]]) + 2 * (columns[1] - columns[0] - 1)
        lines += "  " + f" {title} ".center(width, "-")[:width]
    return lines.rstrip()


def _row(diagnosis: Diagnosis, node: str) -> tuple[str, ...]:
    result = diagnosis.results[node]
    delays, rates = diagnosis.delays.get(node), result.get("rate") or {}
    seen = [getattr(delays, name, None) for name in ("new", "renamed", "stat_new", "stat_renamed")]
    speeds = [rates.get(name) for name in ("publish", "durable", "read")]
    offset = diagnosis.offsets.get(node)
    clock = "-" if offset is None else _offset(offset.middle, offset.error)
    place = result.get("place") or {}
    free = size(place["bytes_free"]) if "bytes_free" in place else "-"
    return (node, *map(duration, seen), *map(_speed, speeds), clock, free, _address(result, node))


def _middle(diagnosis: Diagnosis, nodes: Sequence[str]) -> tuple[str, ...]:
    cells = ["median"]
    for name in ("new", "renamed", "stat_new", "stat_renamed"):
        values = [getattr(diagnosis.delays[n], name) for n in nodes if n in diagnosis.delays]
        known = [value if value >= 0 else 1e9 for value in values if value is not None]
        cells.append(duration(None if not known or median(known) == 1e9 else median(known)))
    for name in ("publish", "durable", "read"):
        speeds = [rate[name] for n in nodes if (rate := diagnosis.results[n].get("rate"))]
        cells.append(_speed(median(speeds) if speeds else None))
    return (*cells, "", "", "")


def duration(seconds: float | None) -> str:
    """Say a time in three digits; a negative one is "not within"."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return f">{duration(-seconds)}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else _short(seconds)


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _offset(middle: float, error: float) -> str:
    if abs(middle) >= 10:
        return f"{middle:+.1f} s"
    return f"{middle * 1000:+.0f} ±{max(1, round(error * 1000))} ms"


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def size(count: float) -> str:
    """Say a number of bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} PiB"


def _address(result: dict[str, Any], node: str) -> str:
    resolved = result.get("resolve")
    if not resolved:
        return "-"
    addresses = resolved["addresses"].get(resolved["own"]) or []
    # The one that others would use first.
    return some(sorted(addresses, key=is_loopback), 1) if addresses else "nothing"


def _proofs(diagnosis: Diagnosis) -> list[str]:
    results = diagnosis.results.values()
    races = [race for result in results for race in (result.get("names") or {}).get("races", ())]
    reads = [result["whole"] for result in results if result.get("whole")]
    locks = [result["lock"] for result in results if result.get("lock")]
    said = []
    bad = {finding.probe for finding in diagnosis.findings if finding.severity == WRONG}
    # A name won by a silent node would count as a name without a winner.
    all_here = len(diagnosis.results) == len(diagnosis.expected)
    if races and all_here and "link" not in bad:
        tries, count = sum(race["attempts"] for race in races), max(race["seen"] for race in races)
        said.append(f"exclusive link: {len(races)} processes fought {tries} times for {count} names, one winner each")
    if reads and "rename" not in bad:
        changes, count = sum(read["changes"] for read in reads), sum(read["reads"] for read in reads)
        said.append(f"atomic rename: {count} reads of renamed-over files, {changes} of them new, none torn")
    times = [taken["released_s"] for taken in locks if taken.get("released_s") is not None]
    if times and "lock" not in bad:
        said.append(f"lock: free {duration(max(times))} after its holder was killed, at the latest")
    clock = "server's" if diagnosis.server_clock else "first node's (files are stamped by the clients)"
    said += [f"clock: minus the {clock}"] if diagnosis.offsets else []
    return [f"  {line}" for line in said]


def to_json(diagnosis: Diagnosis, took_s: float) -> str:
    """Return all results as one JSON object."""
    import json

    from ftslurm.dataclasses import asdict

    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "directory": diagnosis.directory,
        "verdict": "wrong" if diagnosis.wrong else "fine",
        "seconds": round(took_s, 3),
        "expected": list(diagnosis.expected),
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "clock": {node: asdict(offset) for node, offset in diagnosis.offsets.items()},
        "clock_of": "server" if diagnosis.server_clock else "first node",
        "seen": {node: asdict(delays) for node, delays in diagnosis.delays.items()},
        "nodes": diagnosis.results,
    }
    return json.dumps(document, indent=2) + "\n"
