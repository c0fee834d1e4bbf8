"""Turns measured samples into medians, ratios, verdicts and a table; pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Samples = dict[str, list[float]]  # one measurement: the tool's name -> its samples in base units

_UNITS = {  # as shown -> (base units in one, digits, the base unit's name)
    "s": (1.0, 3, "seconds"),
    "ms": (1e-3, 1, "seconds"),
    "µs": (1e-6, 2, "seconds"),
    "MB": (1e6, 1, "bytes"),
    "kB": (1e3, 1, "bytes"),
    "kB/s": (1e3, 2, "bytes/s"),
    "calls": (1.0, 1, "calls"),
    "calls/s": (1.0, 2, "calls/s"),
    "x": (1.0, 2, "ratio"),
    "%": (1e-2, 2, "share"),
    "processes": (1.0, 0, "processes"),
}


@dataclass(frozen=True)
class Measurement:
    """One line of the table: a quantity, and the bars that our own tool is held to."""

    key: str
    title: str
    unit: str  # one of those above
    bar: float | None = None  # at most this much, in the samples' own unit (seconds, bytes)
    bar_ratio: tuple[str, float] | None = None  # at most this part of that tool's median


def show(value: float, unit: str) -> str:
    """Return a quantity for people: ``0.213 s``, ``24.9 MB``."""
    one, digits, _ = _UNITS[unit]
    return f"{value / one:.{digits}f} {unit}"


def cell(samples: Sequence[float], unit: str) -> str:
    """Return the median, and from where to where the samples went."""
    if not samples:
        return "-"
    low, middle, high = (show(v, unit) for v in (min(samples), statistics.median(samples), max(samples)))
    return f"{middle} ({low.split()[0]} to {high.split()[0]})"


def bar_text(measurement: Measurement) -> str:
    """Return what is asked of us, for example ``≤ 0.3 s, ≤ 1/5 of torchrun``."""
    parts = []
    if measurement.bar is not None:
        parts.append(f"≤ {measurement.bar / _UNITS[measurement.unit][0]:g} {measurement.unit}")
    if measurement.bar_ratio is not None:
        tool, part = measurement.bar_ratio
        parts.append(f"≤ {part:g} of {tool}" if part >= 1 else f"≤ 1/{1 / part:g} of {tool}")
    return ", ".join(parts)


def ratio(samples: Samples, ours: str, theirs: str) -> float | None:
    """Return our median divided by theirs, or None where one is missing or theirs is 0."""
    if not samples.get(ours) or not samples.get(theirs):
        return None
    divisor = statistics.median(samples[theirs])
    return statistics.median(samples[ours]) / divisor if divisor else None


def verdict(measurement: Measurement, samples: Samples, ours: str) -> str:
    """Return ``met`` or ``MISSED``, or nothing where there is no bar or it cannot be judged."""
    if not samples.get(ours):
        return ""
    judged = []
    if measurement.bar is not None:
        judged.append(statistics.median(samples[ours]) <= measurement.bar)
    if measurement.bar_ratio is not None:
        tool, part = measurement.bar_ratio
        found = ratio(samples, ours, tool)
        if found is not None:
            judged.append(found <= part)
    if not judged:
        return ""
    return "met" if all(judged) else "MISSED"


def lines(
    measurements: Sequence[Measurement], results: dict[str, Samples], tools: Sequence[str], ours: str
) -> list[str]:
    """Return the table: a row per measurement, a column per tool, then ratios, bar and verdict."""
    others = [tool for tool in tools if tool != ours] if ours in tools else []
    header = ["median (min to max)", *tools, *(f"ours/{tool}" for tool in others), "bar", ""]
    rows = [header]
    for measurement in measurements:
        samples = results.get(measurement.key, {})
        found = (ratio(samples, ours, tool) for tool in others)
        rows.append(
            [
                measurement.title,
                *(cell(samples.get(tool, []), measurement.unit) for tool in tools),
                *("-" if value is None else f"{value:.2f}" for value in found),
                bar_text(measurement),
                verdict(measurement, samples, ours),
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    padded = ([text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in padded]


def as_json(measurements: Sequence[Measurement], results: dict[str, Samples], ours: str) -> list[dict[str, object]]:
    """Return the same facts for programs: all samples, medians, bars and verdicts."""
    return [
        {
            "key": measurement.key,
            "title": measurement.title,
            "unit": _UNITS[measurement.unit][2],
            "samples": results.get(measurement.key, {}),
            "medians": {
                tool: statistics.median(values) for tool, values in results.get(measurement.key, {}).items() if values
            },
            "bar": measurement.bar,
            "bar_ratio": measurement.bar_ratio,
            "verdict": verdict(measurement, results.get(measurement.key, {}), ours) or None,
        }
        for measurement in measurements
    ]
