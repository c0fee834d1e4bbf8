"""The diagnosis as text and as JSON (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low

from ftslurm.doctor.checks import atomic_rename, directory, exclusive_link, lock, name_lookup, rate
from ftslurm.doctor.diagnose import Diagnosis, of_check
from ftslurm.health.addresses import is_loopback
from ftslurm.health.table import finding_lines, findings_json
from ftslurm.health.verdict import Json
from ftslurm.records.health import FAIL, SEVERITY, WARN
from ftslurm.text import duration, names, plural, safe, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.doctor.load import Load

SCHEMA, VERSION = "ftslurm/doctor-report", 1
ROWS = 16
LEAST = 6
HEAD = (
    ("", "visible after", "", "by plain stat", "", "per second", "", "", "", "", ""),
    ("node", "new", "renamed", "new", "renamed", "publish", "to disk", "read", "clock", "free", "resolves to"),
)
LEFT = (0, 10)


def render(diagnosis: Diagnosis, took_s: float, load: Load | None = None) -> str:
    """Return the text: the verdict, findings with advice, the nodes, the proofs, and the load of a run."""
    lines = [_verdict(diagnosis, took_s), *_mounts(diagnosis)]
    lines += finding_lines(diagnosis.findings, len(diagnosis.expected))
    rows = _ordered(diagnosis)
    measured = [node for node in rows if rate.CHECK.name in diagnosis.results[node] or diagnosis.delays.get(node)]
    if measured:
        lines += ["", *_table(diagnosis, measured)]
    proofs = _proofs(diagnosis)
    # Paths and host names may contain any text.
    lines += ["", *proofs] if proofs else []
    if load is not None:
        from ftslurm.doctor.load import lines as load_lines

        lines += ["", *load_lines(load)]
    return "".join(f"{safe(line)}\n" for line in lines)


def _verdict(diagnosis: Diagnosis, took_s: float) -> str:
    statuses = [one.finding.status for one in diagnosis.findings]
    failed, warned = statuses.count(FAIL), statuses.count(WARN)
    warnings = f", {plural(warned, 'warning')}" if warned else ""
    text = f"FAIL, {plural(failed, 'finding')}{warnings}" if failed else f"fine{warnings}"
    nodes = plural(len(diagnosis.expected), "node")
    return f"ftslurm doctor: {diagnosis.directory}: {text} ({nodes}, {duration(took_s)})"


def _mounts(diagnosis: Diagnosis) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for node, facts in of_check(diagnosis.results, directory.NAME).items():
        mount = facts["mount"]
        if mount["type"]:
            text = f"{mount['type']} {mount['source']} on {mount['point']} ({mount['options']})"
            owner = f"; uid {facts['owner']}, mode {facts['mode']:04o}" if "owner" in facts else ""
            kinds.setdefault(text + owner, []).append(node)
    shown = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    if len(shown) == 1:
        return [f"  {shown[0][0]}"]
    # Client addresses and the like differ from node to node; a wrong mount is a finding.
    return [f"  {names(nodes, 3)}: {text}" for text, nodes in shown[:3]] + (
        [f"  and {len(shown) - 3} more kinds of mount (--json has them all)"] if len(shown) > 3 else []
    )


def _ordered(diagnosis: Diagnosis) -> list[str]:
    """Return the nodes with a result, those with findings first, then the slowest of the others."""
    order = list(diagnosis.results)

    def key(node: str) -> tuple[int, float, int]:
        worst = max((SEVERITY.index(f.finding.status) for f in diagnosis.findings if node in f.nodes), default=0)
        all_over = all(len(f.nodes) == len(order) for f in diagnosis.findings)
        delays = diagnosis.delays.get(node)
        late = (delays.renamed or 0.0) + (delays.new or 0.0) if delays else 0.0
        many = len(order) > ROWS
        return (0 if all_over else -worst, -late if many else 0.0, order.index(node))

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
        lines.append("  > not visible within that time; ftslurm opens the directory first and does not wait for that")
    return lines


def _groups(widths: Sequence[int]) -> str:
    """Return the upper head: each title over the middle of its columns."""
    lines = " " * (2 + widths[0])
    for title, columns in (("visible after", (1, 3)), ("by plain stat", (3, 5)), ("per second", (5, 8))):
        width = sum(widths[columns[0] : columns[1]]) + 2 * (columns[1] - columns[0] - 1)
        lines += "  " + f" {title} ".center(width, "-")[:width]
    return lines.rstrip()


def _row(diagnosis: Diagnosis, node: str) -> tuple[str, ...]:
    result = diagnosis.results[node]
    delays, rates = diagnosis.delays.get(node), result.get(rate.CHECK.name) or {}
    visible = [getattr(delays, name, None) for name in ("new", "renamed", "stat_new", "stat_renamed")]
    speeds = [rates.get(name) for name in ("publish", "durable", "read")]
    offset = diagnosis.offsets.get(node)
    clock = "-" if offset is None else _offset(offset.middle, offset.error)
    free_bytes = (result.get(directory.NAME) or {}).get("free")
    free = "-" if free_bytes is None else size(free_bytes)
    return (node, *map(_within, visible), *map(_speed, speeds), clock, free, _address(result))


def _middle(diagnosis: Diagnosis, nodes: Sequence[str]) -> tuple[str, ...]:
    cells = ["median"]
    for name in ("new", "renamed", "stat_new", "stat_renamed"):
        values = [getattr(diagnosis.delays[n], name) for n in nodes if n in diagnosis.delays]
        known = [value if value >= 0 else 1e9 for value in values if value is not None]
        cells.append(_within(None if not known or median_low(known) == 1e9 else median_low(known)))
    for name in ("publish", "durable", "read"):
        speeds = [facts[name] for facts in of_check(diagnosis.results, rate.CHECK.name).values()]
        cells.append(_speed(median_low(speeds) if speeds else None))
    return (*cells, "", "", "")


def _within(seconds: float | None) -> str:
    """Format a measured time; a negative one is "not within"."""
    if seconds is None:
        return "-"
    return f">{duration(-seconds)}" if seconds < 0 else duration(seconds)


def _offset(middle: float, error: float) -> str:
    if abs(middle) >= 10:
        return f"{middle:+.1f} s"
    return f"{middle * 1000:+.0f} ±{max(1, round(error * 1000))} ms"


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def _address(result: Mapping[str, Json]) -> str:
    resolved = result.get(name_lookup.CHECK.name)
    if not resolved:
        return "-"
    addresses = resolved["addresses"].get(resolved["own"][0]) or []
    # The one that others would use first.
    return names(sorted(addresses, key=is_loopback), 1) if addresses else "nothing"


def _proofs(diagnosis: Diagnosis) -> list[str]:
    results = diagnosis.results
    races = [race for facts in of_check(results, exclusive_link.CHECK.name).values() for race in facts["races"]]
    reads = of_check(results, atomic_rename.CHECK.name).values()
    proofs = []
    failed = {one.check for one in diagnosis.findings if one.finding.status == FAIL}
    # A name won by a silent node would count as a name without a winner.
    all_here = len(results) == len(diagnosis.expected)
    if races and all_here and exclusive_link.CHECK.name not in failed:
        tries, names = sum(race["attempts"] for race in races), max(race["taken"] for race in races)
        text = f"{len(races)} processes competed {tries} times for {names} names, one winner each"
        proofs.append(f"exclusive link: {text}")
    if reads and atomic_rename.CHECK.name not in failed:
        changes, tries = sum(read["changes"] for read in reads), sum(read["reads"] for read in reads)
        proofs.append(f"atomic rename: {tries} reads of renamed files, {changes} of them new, none torn")
    locks = of_check(results, lock.CHECK.name).values()
    times = [taken["released_s"] for taken in locks if taken.get("released_s") is not None]
    if times and lock.CHECK.name not in failed:
        proofs.append(f"lock: free {duration(max(times))} after its holder was killed, at the latest")
    clock = "server's" if diagnosis.server_clock else "first node's (files are stamped by the clients)"
    proofs += [f"clock: minus the {clock}"] if diagnosis.offsets else []
    return [f"  {line}" for line in proofs]


def to_json(diagnosis: Diagnosis, took_s: float, load: Load | None = None) -> str:
    """Return all results as one JSON object."""
    import json

    from ftslurm.dataclasses import asdict

    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "directory": diagnosis.directory,
        "status": diagnosis.status,
        "seconds": round(took_s, 3),
        "expected": list(diagnosis.expected),
        "findings": findings_json(diagnosis.findings),
        "clock": {node: asdict(offset) for node, offset in diagnosis.offsets.items()},
        "clock_of": "server" if diagnosis.server_clock else "first node",
        "delays": {node: asdict(delays) for node, delays in diagnosis.delays.items()},
        "nodes": diagnosis.results,
    }
    if load is not None:
        from ftslurm.doctor.load import to_json as load_json

        document["load"] = load_json(load)
    return json.dumps(document, indent=2) + "\n"
