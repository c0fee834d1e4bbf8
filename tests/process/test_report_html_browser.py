"""The report's page in a real browser: light and dark, wide and narrow, nothing refused and nothing fetched.

Pictures of all of them are kept in $FTSLURM_PICTURES, if that is set, for people to look at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_runs.builder import SECOND_NS, RunBuilder

from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.html import render
from tests.process.browser import Browser, find

TORCH = "/opt/conda/lib/python3.11/site-packages/torch"
MAIN = ("/home/ann/lm/train.py", 61, "<module>")
REDUCE = (MAIN, ("/home/ann/lm/train.py", 88, "step"), (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"))
DATA = (MAIN, (f"{TORCH}/utils/data/dataloader.py", 725, "__next__"), ("/home/ann/lm/data.py", 40, "__getitem__"))
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3141"
VIEWS = [(1200, False), (1200, True), (400, False), (400, True)]

# The contrast of all text that is seen against what lies behind it, by WCAG 2; below 4.5 it is hard to read.
CONTRAST = """
(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("svg") || !element.checkVisibility()) continue;
    let behind = element, back = [0, 0, 0, 0];
    while (behind && back[3] === 0) {
      const c = rgb(getComputedStyle(behind).backgroundColor);
      back = c.length === 3 ? [...c, 1] : c;
      behind = behind.parentElement;
    }
    const [a, b] = [light(rgb(getComputedStyle(element).color)), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${element.tagName}.${element.className}: ${element.textContent}`);
  }
  return found.slice(0, 20);
})()
"""


def small(parent: Path) -> RunBuilder:
    run = RunBuilder(parent, run_id="job-4711", job_id="4711")
    run.round().steps(1, 1200, startup_s=14, over_s=1800)
    log = "step 1199 loss 2.31\nstep 1200 loss nan\nnan in grad of layers.3.mlp.up_proj\n"
    run.fail(3, ValueError("loss is nan at step 1200 (lr 3e-4)"), step=1200, log=log, after_s=1)
    run.fail(2, RuntimeError(GLOO), after_s=0.05).stop(after_s=3, killed=(0,))
    return run.close("failed", "rank 3 on n2 failed; no restarts allowed (--max-restarts 0)")


def hang(parent: Path) -> RunBuilder:
    run = RunBuilder(parent, nodes=4, nproc=8, run_id="job-4712", job_id="4712")
    run.round().steps(1, 501, startup_s=20, over_s=1500).lose("n3", silent_s=31)
    run.round(after_s=5).steps(450, 1250, startup_s=25, over_s=2500)
    places = dict.fromkeys(range(32), REDUCE) | {19: DATA}
    run.hang(4, "no heartbeat for 60.0 s (time-out 60.0 s)", places=places, step=1250, after_s=61)
    run.log(19, "loading shard 7\nretry 1 of 5: time-out\n").stop(killed=(19, 4), after_s=32)
    return run.close("failed", "rank 4 on n1 hung; no restarts left")


def large(parent: Path) -> RunBuilder:
    """Build a run of 1,000 nodes in 8 rounds: crashes, lost nodes that spares replace, two requeues, a broken GPU."""
    run = RunBuilder(parent, nodes=1000, nproc=1, run_id="llm-70b-main", job_id="90210", max_restarts=20)
    active, spares, step = run.node_names[:992], run.node_names[992:], 0
    for number, over_s in enumerate((7200, 600, 40_000, 7200, 20_000, 600, 7200, 20_000), 1):
        run.round(nodes=list(active), after_s=9).steps(step, step + over_s // 10, startup_s=90, over_s=over_s)
        step += over_s // 10 - 37
        if number in (2, 6):
            lost = active[number * 111]
            run.lose(lost, silent_s=33)
            active = [name for name in active if name != lost] + [spares.pop(0)]
        elif number in (3, 7):
            run.stop(reason="the job's time limit", after_s=60, outcome="stopped").attempt().wait(5400)
        elif number < 8:
            run.fail(number * 97, signal="SIGSEGV", after_s=1, core_dumped=True).stop(after_s=12)
    run.fail(424, RuntimeError("CUDA error: uncorrectable ECC error encountered"), after_s=3)
    for rank in range(0, 992, 7):
        run.fail(rank, RuntimeError(GLOO), after_s=0.001)
    return run.stop(after_s=20).close("failed", "rank 424 on n425 failed; no restarts left")


STORIES = {"small": small, "hang": hang, "large": large}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, build in STORIES.items():
        run = build(tmp_path_factory.mktemp(name))
        path = run.write()
        report = analyse(gather(path, now_ns=run.now_ns + SECOND_NS))
        found[name] = path / "report.html"
        found[name].write_text(render(report, page_directory=str(path), zone=time.gmtime))
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find()
    if program is None:
        pytest.skip("no Chromium here: apt install chromium, or $FTSLURM_CHROMIUM")
    opened = Browser(program, tmp_path_factory.mktemp("browser"))
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def silent(browser: Browser) -> Iterator[Browser]:
    """The browser; the test fails if the page prints anything to the console or asks for anything but itself."""
    browser.messages.clear()
    browser.asked.clear()
    yield browser
    assert browser.messages == []
    assert len([url for url in browser.asked if not url.startswith("file:")]) == 0
    assert all(url.endswith("/report.html") for url in browser.asked)


def picture(browser: Browser, name: str) -> None:
    folder = os.environ.get("FTSLURM_PICTURES")
    if folder:
        browser.screenshot(Path(folder) / f"{name}.png")


@pytest.mark.parametrize(("width", "dark"), VIEWS)
@pytest.mark.parametrize("name", STORIES)
def test_a_page_is_readable_and_fits(
    silent: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    silent.open(pages[name], width=width, dark=dark)
    picture(silent, f"{name}-{'dark' if dark else 'light'}-{width}")
    assert silent.value("document.documentElement.scrollWidth") <= width
    assert silent.value("getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 20, 23)" if dark else "rgb(246, 247, 249)"
    )
    assert silent.value(CONTRAST) == []


def test_the_answer_is_visible_without_scrolling_on_a_telephone(silent: Browser, pages: dict[str, Path]) -> None:
    for path in pages.values():
        silent.open(path, width=400, height=700)
        assert silent.value("document.querySelector('h1').getBoundingClientRect().bottom") < 400
        assert silent.value("document.querySelector('.hint').getBoundingClientRect().bottom") < 700


def test_the_bar_has_all_parts_and_a_mark_for_each_failure(silent: Browser, pages: dict[str, Path]) -> None:
    silent.open(pages["large"])
    drawn = "new Set([...document.querySelectorAll('.strip > rect')].map((r) => r.getAttribute('class')))"
    assert set(silent.value(f"[...{drawn}]")) == {
        "startup", "productive", "lost", "detection", "other", "restart", "queue",
    }  # fmt: skip
    assert silent.value("document.querySelectorAll('.strip a').length") == 6
    ends = "[...document.querySelectorAll('.strip > rect')].map((r) => r.getBoundingClientRect().right)"
    edge = "document.querySelector('.strip').getBoundingClientRect().right"
    assert abs(silent.value(f"Math.max(...{ends})") - silent.value(edge)) < 2


def test_a_link_to_a_log_leads_to_the_file(silent: Browser, pages: dict[str, Path]) -> None:
    silent.open(pages["small"])
    link = silent.value("[...document.querySelectorAll('a')].find((a) => a.textContent.endsWith('.log')).href")
    assert link == (pages["small"].parent / "rounds" / "000001" / "ranks" / "00003" / "stderr.log").as_uri()


def test_a_thousand_nodes_open_at_once(silent: Browser, pages: dict[str, Path]) -> None:
    assert pages["large"].stat().st_size < 200_000
    began = time.monotonic()
    silent.open(pages["large"])
    assert time.monotonic() - began < 10
    assert silent.value("document.querySelectorAll('.grid tbody tr').length") < 20
    silent.value("document.querySelector('.grid details').open = true")
    assert silent.value("document.documentElement.scrollWidth") <= 1200


@pytest.mark.parametrize(
    "text",
    [
        "</pre></section><script>console.log('ran')</script>",
        "<img src=x onerror=console.log('ran')>",
        "\"'><svg onload=console.log('ran')><style>body{background:red}</style>",
        "<a href=javascript:console.log(1) autofocus onfocus=console.log('ran')>x",
        "<link rel=stylesheet href=file:///etc/passwd><base href=//evil.example/>",
    ],
)
def test_nothing_in_a_message_runs_or_loads(silent: Browser, tmp_path: Path, text: str) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError(text), log=text).stop().close("failed", text)
    path = run.write()
    page = path / "report.html"
    page.write_text(render(analyse(gather(path, now_ns=run.now_ns)), page_directory=str(path)))
    silent.open(page)
    assert text in silent.value("document.body.textContent")


def test_the_test_would_notice_what_the_page_must_not_do(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    pale = "<body style='background:#fff'><p style='color:#999'>pale</p>"
    page.write_text(f"<script>console.log('ran')</script><img src=missing.png>{pale}")
    browser.messages.clear()
    browser.asked.clear()
    browser.open(page)
    assert any("ran" in line for line in browser.messages)
    assert any(url.endswith("missing.png") for url in browser.asked)
    assert len(browser.value(CONTRAST)) == 1


def test_the_policy_refuses_a_script_and_a_picture_even_if_the_escaping_had_a_hole(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    hole = "<script>document.title='ran'</script><img src=missing.png><b style='color:red'>x</b></main>"
    page = tmp_path / "report.html"
    page.write_text(pages["small"].read_text().replace("</main>", hole))
    browser.messages.clear()
    browser.open(page)
    assert browser.value("document.title") != "ran"
    assert sum("Content Security Policy" in line for line in browser.messages) == 3
