"""The report as a page: what it shows first, what it must never let through, and how large it may get."""

from __future__ import annotations

import base64
import copy
import hashlib
import os
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import FRAMES, RunBuilder

from ftslurm.report.analysis import analyse
from ftslurm.report.command import main
from ftslurm.report.gathering import gather
from ftslurm.report.html import render
from ftslurm.report.html_elements import esc, link
from ftslurm.report.pipeline import make_report

MAIN = ("/home/ann/lm/train.py", 61, "<module>")
REDUCE = (MAIN, ("/opt/lib/python3.11/site-packages/torch/distributed/c10d.py", 3252, "all_reduce"))
DATA = (MAIN, ("/home/ann/lm/data.py", 40, "__getitem__"))
VOID = {"meta"}
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg onload=alert(1)>' autofocus onfocus=alert(1) x='",
    "</title></style></pre></details></main><iframe src=//evil.example>",
    "<!-- ]]> <![CDATA[ -->",
    "&lt;b&gt;&#60;b&#62;",
    "javascript:alert(1)",
    "\u202egpj.exe\u2066\u200b\U000e0041",
    "\x1b]8;;http://evil.example\x07link\x00\x07\x9b31m",
    "half \ud800 a pair \udfff",
    "x" * 20_000,
    "</svg><a href='//evil.example'>" * 50,
)


class Page(HTMLParser):
    """What a browser would make of the page: its elements, attributes and text; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without its start"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "title"):
            self.text += data

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.elements if name == tag)


def page(run: RunBuilder, **kwargs: Any) -> str:
    path = run.write()
    report = analyse(gather(path, now_ns=run.now_ns + 10**9))
    return render(report, zone=time.gmtime, page_directory=str(path), **kwargs)


def failing(parent: Path) -> RunBuilder:
    run = RunBuilder(parent).round().steps(1, 120, over_s=200)
    run.fail(3, ValueError("boom"), step=120, log="step 119 loss 2.31\n").stop(killed=(0,))
    run.round().steps(100, 300, over_s=300).fail(1, signal="SIGSEGV", core_dumped=True, after_s=1).stop(after_s=2)
    return run.close("failed", "rank 1 on n1 failed; no restarts left")


def hanging(parent: Path) -> RunBuilder:
    run = RunBuilder(parent).round().steps(1, 120, over_s=200)
    places = {0: REDUCE, 1: REDUCE, 2: REDUCE, 3: DATA}
    return run.hang(0, places=places, step=120, after_s=31).log(3, "loading shard 7\n").stop().close("failed", "hung")


def stories(parent: Path) -> Iterator[RunBuilder]:
    yield failing(parent / "failing")
    yield hanging(parent / "hanging")
    yield RunBuilder(parent / "good").round().steps(1, 5, over_s=9).succeed().close("succeeded", "all succeeded")
    yield RunBuilder(parent / "stopped").round().stop(outcome="stopped").close("stopped", "scancel")
    yield RunBuilder(parent / "lost", nodes=3).round().wait(9).lose("n2").round(nodes=["n1", "n3"]).wait(20)
    yield RunBuilder(parent / "empty")


def test_the_answer_stands_on_top(tmp_path: Path) -> None:
    text = Page(page(failing(tmp_path))).text
    order = [
        "FAILED", "rank 1 on n1: segmentation fault (SIGSEGV, core dumped)", "Where the time went", "The other ranks",
        "Nodes by rounds", "Rounds", "ValueError: boom", "The run",
    ]  # fmt: skip
    # The headline names the earlier failure, too.
    places = [text.rindex(part) if "boom" in part else text.index(part) for part in order]
    assert places == sorted(places)


def test_a_hang_shows_the_suspect_and_the_tree_of_stacks(tmp_path: Path) -> None:
    shown = page(hanging(tmp_path))
    text = Page(shown).text
    assert text.index("rank 3 suspect") < text.index("ranks 0-2") < text.index("Their stacks")
    assert '<tr class="suspect">' in shown
    assert "<strong>/home/ann/lm/data.py</strong>" in shown
    assert '<span class="dim">File &quot;/opt/lib/python3.11/site-packages' in shown
    assert "loading shard 7" in text


def test_every_kind_of_run_is_a_sound_page_without_anything_from_outside(tmp_path: Path) -> None:
    for run in stories(tmp_path):
        shown = page(run)
        parsed = Page(shown)
        assert not {tag for tag, _ in parsed.elements} & {"script", "img", "iframe", "object", "embed", "form", "base"}
        assert not re.search(r"https?:|[\"'=(]\s*//|@import|url\((?!#hatch)|src=|\bstyle=|\bon\w+=", shown)
        assert all("href" not in a or re.match(r"#|\./|file:///", a["href"] or "") for _, a in parsed.elements)
        identities = [a["id"] for _, a in parsed.elements if "id" in a]
        assert len(identities) == len(set(identities))
        assert all((a["href"] or "")[1:] in identities for a in parsed.all("a") if (a["href"] or "").startswith("#"))


def test_the_page_makes_the_browser_refuse_all_but_this_style_sheet(tmp_path: Path) -> None:
    shown = page(failing(tmp_path))
    css = re.search(r"<style>(.*?)</style>", shown, re.DOTALL)
    assert css is not None
    digest = base64.b64encode(hashlib.sha256(css[1].encode()).digest()).decode()
    policy = next(a["content"] or "" for a in Page(shown).all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none';")
    assert f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_from_a_file_is_more_than_text(tmp_path: Path, text: str) -> None:
    clean = {tag for run in stories(tmp_path / "clean") for tag, _ in Page(page(run)).elements}
    run = RunBuilder(tmp_path, nodes=2).round().steps(1, 5, over_s=1)
    frames = (*FRAMES, (f"/x/{text[:200]}.py", 1, text[:200], text))
    run.fail(3, ValueError(text), step=5, frames=frames)
    run.fail(1, OSError(text), after_s=1).stop(reason=text)
    run.attempts[0]["command"] = [text]
    run.history[0] |= {"attempt": text, "reason": text, "nodes": ["n1", text]}
    if "\ud800" not in text:
        run.log(3, text)
    path = run.close("failed", text).write()
    report = analyse(gather(path, now_ns=run.now_ns))
    report["run"]["directory"] = f"/runs/{text}"
    report["problems"] = [{"file": text, "reason": text}]
    for each in report["rounds"]:
        each["first_failure"]["evidence_lines"] = [text]
        if each["first_failure"]["log"] is not None:
            each["first_failure"]["log"]["path"] = f"/runs/{text}/stderr.log"
    shown = render(report, zone=time.gmtime, page_directory=f"/runs/{text}")
    shown.encode()
    parsed = Page(shown)
    assert {tag for tag, _ in parsed.elements} <= clean | {"ul", "li", "code", "pre", "strong"}
    assert not any(name.startswith("on") or name == "style" for _, a in parsed.elements for name in a)
    assert all(re.match(r"#|\./|file:///", a["href"] or "") for a in parsed.all("a"))
    assert not re.search(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", parsed.text
    )
    assert len(shown) < 500_000


def test_links_are_relative_below_the_page_and_absolute_elsewhere() -> None:
    path = "/runs/job 1/rounds/a#b?c%/stderr.log"
    assert link(path, "log", "/runs/job 1") == '<a href="./rounds/a%23b%3Fc%25/stderr.log">log</a>'
    assert link(path, "log", "/runs/job") == '<a href="file:///runs/job%201/rounds/a%23b%3Fc%25/stderr.log">log</a>'
    assert link("runs/x", "<x>", None) == "&lt;x&gt;"
    assert link("/javascript:alert(1)", "x", "/") == '<a href="./javascript%3Aalert%281%29">x</a>'
    assert link("/a\udcff\ud800", "x", None).isascii()


def test_a_control_character_is_shown_not_sent() -> None:
    assert esc("a\x1b[31mb\x07\u202e<") == "ab\\x07\\u202e&lt;"


def test_nodes_that_fared_alike_are_one_row(tmp_path: Path) -> None:
    run = (
        RunBuilder(tmp_path, nodes=40, nproc=1).round().wait(5).fail(7, exit_code=1).stop().round().wait(5).lose("n21")
    )
    shown = page(run.close("failed", "no"))
    grid = re.search(r'<table class="grid">.*?</table>', shown, re.DOTALL)
    assert grid is not None
    assert grid[0].count("<tr>") == 1 + 3
    assert "<summary>38 nodes</summary><code>n[1-7,9-20,22-40]</code>" in grid[0]
    assert grid[0].index("n21</th>") < grid[0].index("n8</th>") < grid[0].index("38 nodes")


def test_a_thousand_nodes_in_many_rounds_stay_a_small_page_even_if_no_two_fared_alike(tmp_path: Path) -> None:
    report = analyse(gather(failing(tmp_path).write(), now_ns=2 * 10**18))
    first = report["rounds"][0]
    rounds = []
    for number in range(1, 301):
        entry = copy.deepcopy(first)
        entry["round"] = entry["first_failure"]["round"] = number
        entry["nodes"] = [f"node{n:04d}" for n in range(1000) if (n >> (number % 10)) & 1]
        entry["first_failure"] |= {"node": f"node{number:04d}", "nodes": [f"node{number:04d}"]}
        entry["first_failure"]["traceback"] = "Traceback (most recent call last):\n" + "  <x>\n" * 10_000
        rounds.append(entry)
    report["rounds"] = rounds
    report["focus"] = 300
    began = time.perf_counter()
    shown = render(report, zone=time.gmtime)
    assert time.perf_counter() - began < 5
    assert len(shown.encode()) < 2_000_000
    Page(shown)


def test_the_page_is_kept_with_the_run_and_goes_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = failing(tmp_path)
    path = run.write()
    assert main([str(path), "--save"]) == 0
    kept = path / "report.html"
    assert "segmentation fault" in kept.read_text()
    assert 'href="./rounds/000001/ranks/00003/stderr.log"' in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    wanted = tmp_path / "elsewhere" / "r.html"
    wanted.parent.mkdir()
    assert main([str(path), "-o", str(wanted)]) == 0
    assert f'href="file://{path}/rounds/000001/ranks/00003/stderr.log"' in wanted.read_text()
    assert capsys.readouterr().out == ""
    assert [p.name for p in wanted.parent.iterdir()] == ["r.html"]
    assert main([str(path), "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!DOCTYPE html>")
    assert main([str(path), "-o", str(tmp_path / "r.md")]) == 0
    assert (tmp_path / "r.md").read_text().startswith("**job-123 FAILED**")
    assert main([str(path), "--format", "json", "-o", os.devnull]) == 0
    assert main([str(path), "-o", str(tmp_path / "none" / "r.html")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_one_rank_or_all_that_failed_are_shown_too(tmp_path: Path) -> None:
    path = failing(tmp_path).write()
    for suffix in ("html", "md"):
        wanted = tmp_path / f"r.{suffix}"
        assert main([str(path), "--round", "1", "--rank", "3", "-o", str(wanted)]) == 0
        shown = wanted.read_text()
        assert "rank 3 on n2, round 1 of job-123" in shown
        assert "step 119 loss 2.31" in shown
        assert main([str(path), "--all", "-o", str(wanted)]) == 0
        assert "segmentation fault" in wanted.read_text()


def test_failures_that_come_back_and_clocks_that_are_off_are_reported(tmp_path: Path) -> None:
    report = analyse(gather(failing(tmp_path).write(), now_ns=2 * 10**18))
    report["repeats"] = [{"kind": "node", "text": "n2 in 3 of 4 rounds: suspect <it>"}]
    report["clocks"] = [{"node": "n2", "ahead_s": 125.0}]
    report["missing"] = ["the records of n1"]
    text = Page(render(report)).text
    for line in ("n2 in 3 of 4 rounds: suspect <it>", "n2 2 min 5 s ahead", "the records of n1"):
        assert line in text


def test_a_run_directory_given_by_a_relative_path_has_links_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = failing(tmp_path).write()
    monkeypatch.chdir(path.parent)
    assert main([path.name, "-o", "r.html"]) == 0
    assert f'href="./{path.name}/rounds/000001/ranks/00003/stderr.log"' in Path("r.html").read_text()


def test_a_run_of_which_nothing_is_left_is_still_a_page(tmp_path: Path) -> None:
    assert "No end was recorded" in Page(render(make_report(tmp_path))).text
