"""From a run directory to the first-failure report, as a command (``ftslurm report``) and as functions.

`gather` reads with bounds and survives damaged files; `analyse` is a pure function of what was read; each renderer is a
function of the dictionary that `analyse` documents::

    import time
    from pathlib import Path
    from ftslurm.report import analyse, gather, render_markdown, render_text

    report = analyse(gather(Path("ftslurm-runs/job-4711"), now_ns=time.time_ns()))
    if report["status"] == "failed" and report["cause"] is not None:
        print(report["cause"]["rank"], report["cause"]["node"], report["cause"]["cause"])
    print(render_text(report))
    Path("failure.md").write_text(render_markdown(report))

`gather_logs` reads torchrun's log directory, or a job's output, instead. `make_report` does both steps, twice if one
rank or all failed ranks are requested.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.report.analysis import analyse as analyse
    from ftslurm.report.facts import Snapshot as Snapshot
    from ftslurm.report.gathering import gather as gather
    from ftslurm.report.html import render as render_html
    from ftslurm.report.logs.gathering import gather_logs as gather_logs
    from ftslurm.report.markdown import render as render_markdown
    from ftslurm.report.pipeline import FORMATS as FORMATS
    from ftslurm.report.pipeline import make_report as make_report
    from ftslurm.report.pipeline import rendered as rendered
    from ftslurm.report.text import render as render_text
    from ftslurm.sharedfs.locate import NotFound as NotFound
    from ftslurm.sharedfs.locate import locate as locate

# Loaded on first use: `ftslurm status` and the agent need only single modules of this package.
_HOMES = {
    "analyse": ("ftslurm.report.analysis", "analyse"),
    "make_report": ("ftslurm.report.pipeline", "make_report"),
    "Snapshot": ("ftslurm.report.facts", "Snapshot"),
    "FORMATS": ("ftslurm.report.pipeline", "FORMATS"),
    "rendered": ("ftslurm.report.pipeline", "rendered"),
    "gather": ("ftslurm.report.gathering", "gather"),
    "render_html": ("ftslurm.report.html", "render"),
    "NotFound": ("ftslurm.sharedfs.locate", "NotFound"),
    "locate": ("ftslurm.sharedfs.locate", "locate"),
    "render_markdown": ("ftslurm.report.markdown", "render"),
    "render_text": ("ftslurm.report.text", "render"),
    "gather_logs": ("ftslurm.report.logs.gathering", "gather_logs"),
}

__all__ = [
    "FORMATS",
    "NotFound",
    "Snapshot",
    "analyse",
    "gather",
    "gather_logs",
    "locate",
    "make_report",
    "render_html",
]
__all__ += ["render_markdown", "render_text", "rendered"]


if not TYPE_CHECKING:  # else a misspelt name would pass as an object

    def __getattr__(name: str) -> object:
        """Load a public name on first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module 'ftslurm.report' has no attribute {name!r}")
        from importlib import import_module

        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
