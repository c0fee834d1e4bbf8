"""The output formats of a report, by name; each renderer is loaded on first use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMATS = ("text", "json", "markdown", "html")
_SUFFIXES = {".json": "json", ".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html"}


def format_of(path: Path | None) -> str:
    """Return the format for a file's suffix; text if there is none."""
    return _SUFFIXES.get(path.suffix.lower(), "text") if path is not None else "text"


def rendered(report: Mapping[str, Any], form: str, *, colour: bool = False, page_directory: str | None = None) -> str:
    """Return a report in one of the `FORMATS`.

    Args:
        report: what `ftslurm.report.analysis.analyse` returned.
        form: the format's name.
        colour: whether text gets ANSI colours.
        page_directory: the directory of the HTML page; links to files below it are relative.

    Raises:
        ValueError: there is no such format.
    """
    if form == "json":
        # ASCII only, so that nothing in it can act on a terminal.
        return json.dumps(report, indent=2) + "\n"
    if form == "text":
        from ftslurm.report import text

        return text.render(report, colour=colour)
    if form == "markdown":
        from ftslurm.report import markdown

        return markdown.render(report)
    if form == "html":
        from ftslurm.report import html

        return html.render(report, page_directory=page_directory)
    raise ValueError(f"expected a format of {', '.join(FORMATS)}, found {form!r}")


__all__ = ["FORMATS", "format_of", "rendered"]
