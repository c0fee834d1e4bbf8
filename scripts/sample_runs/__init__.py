"""Runs for tests, benchmarks and demonstrations: `builder.RunBuilder` builds a run's history and writes its directory.

It starts no process, waits for nothing, and needs no cluster:

>>> import tempfile
>>> from pathlib import Path
>>> from ftslurm.report import make_report, render_text
>>> from sample_runs.builder import RunBuilder
>>> with tempfile.TemporaryDirectory() as parent:
...     run = RunBuilder(Path(parent)).round().steps(1, 120).wait(60)
...     _ = run.fail(3, ValueError("boom"), step=120).stop().close("failed", "rank 3 failed")
...     report = make_report(run.write())
>>> report["cause"]["rank"], report["cause"]["node"], report["cause"]["what"]
(3, 'n2', 'ValueError: boom')
>>> print(render_text(report).splitlines()[0])
job-123 FAILED: rank 3 on n2: ValueError: boom
"""
