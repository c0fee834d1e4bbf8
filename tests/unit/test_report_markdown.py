"""The report as Markdown: what people paste into an issue, and what must never break out of it."""

from __future__ import annotations

import html
import re
import time
from pathlib import Path

import pytest
from sample_runs.builder import FRAMES, RunBuilder

from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.markdown import cell, code, fence, inline, render

GITHUB_LIMIT = 65_536
HOSTILE = (
    "@everyone",
    "see #1 and https://evil.example www.evil.example ann@evil.example",
    "```\n@everyone\n```",
    "`````` ` ``",
    "|a|b| \\| ``|``",
    "</details><img src=x onerror=alert(1)>",
    "<!-- -->[x](javascript:alert(1))![y](http://evil.example/z.png)",
    "# title\n> quote\n- item\n\n---",
    "\x1b]8;;http://evil.example\x07link\x1b]8;;\x07\x00\x07\x9b31m",
    "\u202egpj.exe \u2066\u200b \ud800 \U000e0041",
    "$\\href{x}{y}$ :boom: deadbeefcafe GH-12 \\`",
    "a" * 5000,
)


def markdown(run: RunBuilder, **kwargs: object) -> str:
    path = run.write()
    report = analyse(gather(path, now_ns=run.now_ns + 10**9))
    return render(report, zone=time.gmtime).replace(str(path), "/shared/runs/job-123")


def outside_of_code(text: str) -> str:
    """Return what a reader of Markdown would take for more than quoted text."""
    kept: list[str] = []
    closing = ""
    for line in text.split("\n"):
        ticks = re.match(r"`{3,}", line)
        if closing:
            closing = "" if line.rstrip() == closing else closing
        elif ticks is not None:
            closing = ticks[0]
        else:
            kept.append(line)
    assert not closing, "a fence was not closed"
    rest = re.sub(r"<code>[^<>`|]*</code>", "", "\n".join(kept))
    return re.sub(r"(?<!`)(`+)(?!`)[^\n]*?(?<!`)\1(?!`)", "", rest)


def test_a_failed_run_is_a_headline_then_evidence_in_fences_then_tables(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 120, over_s=200)
    run.fail(3, ValueError("boom"), step=120, log="step 119 loss 2.31\nstep 120 loss 2.30\n").stop(killed=(0,))
    assert markdown(run.close("failed", "no restarts allowed (--max-restarts 0)")) == (
        """\
**job-123 FAILED**: rank 3 on n2: ValueError: boom

- `at train.py:42 in train_step, step 120, round 1`
- `no restarts allowed (--max-restarts 0); job exit code 1`

traceback of rank 3 in round 1:

```text
Traceback (most recent call last):
  File "/home/ann/lm/train.py", line 61, in <module>
    main()
  File "/home/ann/lm/train.py", line 42, in train_step
    loss = model(batch).mean()
ValueError: boom
```

`the end of its stderr, traceback left out` (`rounds/000001/ranks/00003/stderr.log`):

```text
| step 119 loss 2.31
| step 120 loss 2.30
```

the other ranks of round 1:

| ranks | how they ended |
| --- | --- |
| ranks 0-2 | stopped by ftslurm, 1 of them by SIGKILL: rank 3 on n2 failed |

rounds:

| round | attempt | nodes | ranks | started | took | trained | lost | ended |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| 1 | 123.0 | 2 | 4 | 2026-03-01 12:00:01 | 3 min 20 s | 3 min 20 s | 0 s | rank 3 on n2: ValueError: boom |

- command: `train.py`
- files: `/shared/runs/job-123`
- made by ftslurm 0.1.0
""".replace("`the end of its stderr, traceback left out`", "the end of its stderr, traceback left out")
    )


def test_a_long_traceback_is_folded_away(tmp_path: Path) -> None:
    frames = tuple(("/home/ann/lm/train.py", n, f"f{n}", "call()") for n in range(40))
    run = RunBuilder(tmp_path).round().fail(3, ValueError("boom"), frames=frames).stop()
    shown = markdown(run.close("failed", "no"))
    assert "traceback of rank 3 in round 1:\n\n<details><summary>53 lines</summary>\n\n```text\nTraceback" in shown
    assert shown.count("<details>") == shown.count("</details>") == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_from_a_file_gets_out_of_code(tmp_path: Path, text: str) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().steps(1, 5, over_s=1)
    frames = (*FRAMES, (f"/x/{text[:200]}.py", 1, text[:200], text))
    run.fail(3, ValueError(text), step=5, log=text, frames=frames)
    run.fail(1, OSError(text), after_s=1).stop(reason=text)
    run.attempts[0]["command"] = [text]
    run.attempts[0]["attempt"] = text[:50].replace("/", "").replace("\0", "")
    run.history[0]["attempt"] = run.history[0]["reason"] = text
    path = run.close("failed", text).write() if "\ud800" not in text else None
    if path is None:
        # JSON can hold half a surrogate pair; a log file cannot.
        run.outputs.clear()
        run.attempts[0]["attempt"] = "123.0"
        path = run.write()
    shown = render(analyse(gather(path, now_ns=run.now_ns)), zone=time.gmtime)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff]", shown)
    rest = outside_of_code(shown).replace("<details><summary>", "").replace("</summary>", "").replace("</details>", "")
    assert not re.search(r"[@<>`#\[\]$\\*_]|://|www\.|:boom:|GH-12|deadbeef", rest.replace("**", "")), rest
    assert len(shown) < GITHUB_LIMIT


@pytest.mark.parametrize("text", HOSTILE)
def test_a_row_has_as_many_cells_whatever_is_in_them(text: str) -> None:
    shown = cell(text)
    assert "|" not in shown
    assert "\n" not in shown


def test_a_bar_in_a_cell_is_still_a_bar_for_the_reader() -> None:
    shown = cell("a|b_c\\|")
    assert html.unescape(shown) == "<code>a|b_c\\|</code>"


def test_code_is_delimited_by_more_backticks_than_it_holds() -> None:
    assert code("a `b` ``c``") == "``` a `b` ``c`` ```"
    assert fence(["````", "x"]) == "`````text\n````\nx\n`````"
    assert inline("rank 3 on n2: exit code 1") == "rank 3 on n2: exit code 1"
    assert inline("a_b") == "`a_b`"


@pytest.mark.exhaustive
def test_the_largest_report_fits_into_a_comment(tmp_path: Path) -> None:
    line = "|`x" * 300
    frames = tuple((f"/home/{line}", n, line[:200], line) for n in range(80))
    run = RunBuilder(tmp_path, nodes=8, nproc=8)
    for _ in range(14):
        run.round(after_s=1)
        for rank in range(0, 64, 4):
            run.fail(rank, ValueError(f"{'abcdefghijklmnop'[rank // 4]} {line}"), frames=frames, after_s=0.2)
        run.log(0, f"{line}\n" * 50).stop(reason=line)
    assert len(markdown(run.close("failed", line))) < GITHUB_LIMIT


def test_a_run_without_anything_is_still_a_report(tmp_path: Path) -> None:
    shown = render(analyse(gather(tmp_path, now_ns=1)), zone=time.gmtime)
    assert "no end was recorded" in shown
