"""The documentation names what exists, all of it, and nothing else; and retired terms stay away."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from documentation import causes_table, options_table
from sample_runs.builder import RunBuilder

from ftslurm.agent.options import parse_run
from ftslurm.cli import COMMANDS
from ftslurm.doctor.command import main as doctor
from ftslurm.event_log.entries import KINDS
from ftslurm.failures.catalogue import ROWS
from ftslurm.health.command import main as health
from ftslurm.logs.command import main as logs
from ftslurm.nodes.command import main as nodes
from ftslurm.records.attempt import Attempt, Run, SchedulerView, StepEnd
from ftslurm.records.defect import DefectRecord
from ftslurm.records.error import ErrorRecord, ExceptionRecord, Frame, HostResources, OomKills, Space
from ftslurm.records.event import EventRecord, LoggedEvent
from ftslurm.records.flight import Collective, FlightRecord, GroupConfig, GroupStatus, Trace
from ftslurm.records.health import Health, HealthFinding
from ftslurm.records.node import NodeRecord
from ftslurm.records.round import RecordSummary, RoundRecord, WorkerRecord
from ftslurm.records.stacks import RankAnswer, StacksAnswer, StacksFile
from ftslurm.records.state import Failure, Hang, LostNode, PendingCommit, State, StateFile
from ftslurm.records.submission import Submission
from ftslurm.rehearse.command import main as rehearse
from ftslurm.report.analysis import analyse
from ftslurm.report.command import main as report
from ftslurm.report.gathering import gather
from ftslurm.runs.clean_command import main as clean
from ftslurm.runs.history_command import main as history
from ftslurm.runs.list_command import main as list_runs
from ftslurm.runs.restart_command import main as restart
from ftslurm.status.command import main as status
from ftslurm.status.stacks import main as stacks
from ftslurm.terminal import UsageError

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"])
FLAG = re.compile(r"(?<![\w-])(--?[a-zA-Z][a-z0-9-]*)")
SUBCOMMANDS = {"nodes": ("list", "exclude", "allow", "pass-on")}


def section(page: str, title: str) -> str:
    """Return the text below the heading that begins with `title`, down to the next heading of its level."""
    text = (DOCS / page).read_text()
    match = re.search(rf"^## {re.escape(title)}[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert match is not None, f"{page} has no section {title}"
    return match[1]


def in_first_column(text: str) -> str:
    return "\n".join(line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `"))


def help_of(command: Callable[[Sequence[str]], int], *arguments: str) -> None:
    try:
        command([*arguments, "--help"])
    except SystemExit:
        pass


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("report", report),
        ("status", status),
        ("stacks", stacks),
        ("logs", logs),
        ("list", list_runs),
        ("clean", clean),
        ("restart", restart),
        ("history", history),
        ("health", health),
        ("nodes", nodes),
        ("doctor", doctor),
        ("rehearse", rehearse),
    ],
)
def test_each_option_of_a_command_is_documented_and_each_documented_one_exists(
    name: str, command: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    for subcommand in SUBCOMMANDS.get(name, ("",)):
        help_of(command, *filter(None, [subcommand]))
    shown = re.findall(r"^  (?:-\w(?: \w+)?, )?(--[a-z-]+)", capsys.readouterr().out, re.M)
    documented = set(FLAG.findall(in_first_column(section("options.md", f"`ftslurm {name}")))) - {"-o", "-f", "-n"}
    assert documented == set(shown) - {"--help"}


def test_the_table_of_options_is_the_one_that_the_program_uses() -> None:
    assert options_table() in (DOCS / "options.md").read_text(), "run python scripts/documentation.py"


def test_the_table_of_causes_is_the_catalogue_and_each_of_nvidias_categories_has_a_row_or_a_reason() -> None:
    page = (DOCS / "causes.md").read_text()
    assert causes_table() in page, "run python scripts/documentation.py"
    rows = re.findall(r"^\| (\d+) \| .+? \| (.+) \|$", page, re.M)
    assert [int(number) for number, _ in rows] == [*range(1, 39)]
    causes = {row.name for row in ROWS}
    for number, text in rows:
        named = set(re.findall(r"`([a-z-]+)`", text))
        assert named <= causes, number
        assert named or text.startswith("none: "), number


def test_each_option_of_torchrun_that_is_named_is_taken_or_refused_with_a_reason() -> None:
    rows = [line for line in section("coming-from.md", "torchrun").splitlines() if line.startswith("| `")]
    flags = {flag for row in rows for flag in FLAG.findall(row.split(" | ")[0])}
    assert len(flags) > 20
    unknown = []
    for flag in flags:
        try:
            parse_run([flag, "x", "--", "train.py"], {})
        except UsageError as error:
            unknown += [flag] if "unknown option" in str(error) else []
    assert unknown == []


def test_each_variable_is_documented_and_each_documented_one_exists() -> None:
    sources = [*(ROOT / "ftslurm").rglob("*.py"), ROOT / "scripts" / "ftsrun"]
    name = re.compile(r"\bFTS(?:LURM|RUN)_[A-Z][A-Z_]*[A-Z]\b")
    used = {found for path in sources for found in name.findall(path.read_text())}
    used |= set(re.findall(r"FTSLURM_[A-Z_]+", options_table()))
    documented = {found for page in PAGES for found in name.findall(page.read_text())}
    assert used - set(name.findall((DOCS / "options.md").read_text())) == set()
    of_tests = {"FTSLURM_TEST_VENV", "FTSLURM_CHROMIUM", "FTSLURM_CORPUS"}
    assert documented - used - of_tests == set()


def test_each_kind_of_a_logged_event_is_documented() -> None:
    rows = in_first_column(section("run-directory.md", "The event log"))
    assert set(re.findall(r"`([a-z-]+)`", rows)) - {"event"} == set(KINDS)


def test_each_link_leads_to_a_file_and_each_page_is_linked_from_the_readme() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in readme] == []


def test_each_command_in_the_documentation_exists() -> None:
    known = {*COMMANDS, "run", "health", "DIR"}
    for page in PAGES:
        found = set(re.findall(r"(?:^|`|\| |; |srun [^\n`]*)ftslurm ([a-z]+)\b", page.read_text(), re.M))
        prose = {word for word in found if word not in known}
        commands = {word for word in prose if re.search(rf"`ftslurm {word}\b", page.read_text())}
        assert commands == set(), page.name
    for page in PAGES:
        scripts = set(re.findall(r"\bscripts/([a-z_-]+(?:\.py)?)", page.read_text()))
        assert [name for name in scripts if not (ROOT / "scripts" / name).exists()] == [], page.name


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        (Run, "`run.json`"),
        (Attempt, "`attempt.json`"),
        (Submission, "`submission.json`"),
        (StepEnd, "`step.json`"),
        (SchedulerView, "`scheduler.json`"),
        (EventRecord, "`events/"),
        (LoggedEvent, "**Event log**"),
        (PendingCommit, "`commits/"),
        (DefectRecord, "`defects/"),
        (NodeRecord, "**Node record**"),
        (StateFile, "**State**"),
        (Failure, "Inner objects"),
        (Hang, "Inner objects"),
        (LostNode, "Inner objects"),
        (Health, "Inner objects"),
        (HealthFinding, "Inner objects"),
        (State, "**State**"),
        (RoundRecord, "**Round on a node**"),
        (WorkerRecord, "**Round on a node**"),
        (RecordSummary, "**Round on a node**"),
        (ErrorRecord, "**Error record**"),
        (ExceptionRecord, "An exception"),
        (Frame, "An exception"),
        (HostResources, "Host resources"),
        (OomKills, "Host resources"),
        (Space, "Host resources"),
        (StacksFile, "**Stop request**"),
        (StacksAnswer, "**Stop request**"),
        (RankAnswer, "**Stop request**"),
        (FlightRecord, "**Record of collectives**"),
        (Trace, "**Record of collectives**"),
        (Collective, "**Record of collectives**"),
        (GroupConfig, "**Record of collectives**"),
        (GroupStatus, "**Record of collectives**"),
    ],
)
def test_each_key_of_a_record_is_documented(kind: type, title: str) -> None:
    parts = section("run-directory.md", "Keys").strip().split("\n\n")
    paragraph = next(part for part in parts if part.startswith(title))
    assert [name for name in kind.__annotations__ if f"`{name}`" not in paragraph] == []


def keys_of(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


RETIRED = [
    r"set[- ]?aside",
    r"\blemons?\b",
    r"\bshun",
    r"node_word|NodeWord",
    r"\bunfit\b",
    r"\bhopeless\b",
    r"\bepitaph\b",
    r"\bbequeath",
    r"\baftercare\b",
    r"\bsurroundings\b",
    r"\bnarrat(?:e|ion)\b",
    r"\boutlook\b",
]
KEPT = {"ftslurm/health/checks/gpu_rows.py", "ftslurm/health/checks/host_memory.py", "tests/unit/test_health_host.py"}


def test_retired_terms_are_not_used() -> None:
    folders = ("ftslurm", "scripts", "sbatch_templates", "docs", "tests")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".sbatch", "")
    ]
    files += PAGES
    found = []
    for path in files:
        name = str(path.relative_to(ROOT))
        if not path.is_file() or path == Path(__file__) or name in KEPT or "__pycache__" in name:
            continue
        text = path.read_text(errors="replace")
        found += [f"{name}: {match[0]}" for pattern in RETIRED for match in re.finditer(pattern, text, re.I)]
    assert found == []


def test_the_keys_of_a_report_are_documented(tmp_path: Path) -> None:
    run = (
        RunBuilder(tmp_path)
        .round()
        .steps(1, 9)
        .fail(3, ValueError("boom"), step=9)
        .stop()
        .round()
        .steps(1, 9)
        .succeed()
    )
    made = analyse(gather(run.close("succeeded", "all ranks succeeded").write(), now_ns=run.now_ns))
    text = (DOCS / "report-schema.md").read_text()
    assert sorted({key for key in keys_of(made) if f"`{key}`" not in text}) == []
