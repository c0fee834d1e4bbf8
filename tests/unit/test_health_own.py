"""Checks of the user's own: commands by their exit code, Python checks by entry points, broken ones without harm."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import ftslurm
from ftslurm.health.check import BACKGROUND, QUICK, Absent, Check, Context
from ftslurm.health.checks import own_commands
from ftslurm.health.plugins import GROUP, LONGEST_S, load, load_from
from ftslurm.health.run import UNHURRIED, longest_s, run
from ftslurm.health.verdict import Json, Judgement, describe, worst
from ftslurm.records.health import FAIL, OK, UNKNOWN, WARN

NODE = Context("n1")


def ended(code: int | None, line: str = "", command: str = "./look.sh") -> Json:
    return {"commands": [{"command": command, "code": code, "line": line, "took_s": None}]}


FAULTS = [
    pytest.param(1, "3 of 8 fans", WARN, "./look.sh: 3 of 8 fans", id="command-warns"),
    pytest.param(2, "GPU 3 is gone", FAIL, "./look.sh: GPU 3 is gone", id="command-fails"),
    pytest.param(2, "", FAIL, "./look.sh: exit code 2, no output", id="command-fails-silently"),
    pytest.param(127, "sh: look.sh: not found", UNKNOWN, "exit code 127, expected 0, 1 or 2: sh: look.sh: not found",
                 id="command-not-found"),
    pytest.param(-11, "", UNKNOWN, "./look.sh: was killed by SIGSEGV", id="command-crashes"),
    pytest.param(-50, "", UNKNOWN, "./look.sh: was killed by SIG50", id="command-killed-by-an-unnamed-signal"),
    pytest.param(None, "waiting for n2", UNKNOWN,
                     "has not ended within 8 s, and was killed; its output: waiting for n2",
                 id="command-hangs"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line", "status", "expected"), FAULTS)
def test_a_command_is_judged_by_its_exit_code(code: int | None, line: str, status: str, expected: str) -> None:
    (finding,) = own_commands.judge(ended(code, line), None, NODE).findings
    assert finding.status == status and expected in describe(finding) and "run it on n1" in finding.advice


def test_a_command_that_succeeds_is_summarised_by_its_line() -> None:
    assert own_commands.judge(ended(0, "all 8 fans"), None, NODE) == Judgement("1 command, all 8 fans")
    assert own_commands.judge(ended(0), None, NODE) == Judgement("1 command, all ok")
    two = {"commands": ended(0)["commands"] + ended(1)["commands"]}
    assert own_commands.judge(two, None, NODE).summary == "2 commands, 1 not ok"


def test_a_long_command_is_cut_and_a_wild_one_is_made_safe() -> None:
    (finding,) = own_commands.judge(ended(1, command="\x1b[2J\x07" + "x" * 500), None, NODE).findings
    assert len(finding.subject) == 60 and finding.subject.startswith("\\x07x")


def test_without_commands_there_is_nothing_to_check() -> None:
    with pytest.raises(Absent, match="no commands of your own"):
        own_commands.fetch(NODE)


# Python checks


def fetch(context: Context) -> Json:
    return {"licences": 3}


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    return Judgement(f"{facts['licences']} licences")


GOOD = Check("site-licences", "licences", frozenset((QUICK,)), 1.0, fetch, judge)
KNOWN = Check("host-memory", "memory", frozenset((QUICK,)), 1.0, fetch, judge)


def leave() -> Check:
    print("this must not get into a look's result")
    raise SystemExit(3)


CHECKS = {
    "ONE": GOOD,
    "MORE": [GOOD, replace(GOOD, name="site-other", sets=frozenset((BACKGROUND,)))],
    "MADE": lambda: (GOOD,),
    "LEAVES": leave,
    "NUMBER": 3,
    "NUMBERS": [3],
    "TAKEN": KNOWN,
    "TWICE": [GOOD, GOOD],
    "NAMELESS": replace(GOOD, name=""),
    "SPACED": replace(GOOD, name="two words"),
    "SETLESS": replace(GOOD, sets=frozenset()),
    "UNKNOWN_SET": replace(GOOD, sets=frozenset(("often",))),
    "ENDLESS": replace(GOOD, limit_s=float("inf")),
    "LONGER": replace(GOOD, limit_s=60.0),
    "LATE": replace(GOOD, late="bad"),
    "DEAF": replace(GOOD, fetch=None),  # type: ignore[arg-type]
}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    class Site:
        def __getattr__(self, name: str) -> Any:
            if name in CHECKS:
                return CHECKS[name]
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "site_of_tests", Site())  # type: ignore[arg-type]


def test_the_longest_duration_of_a_run_is_known() -> None:
    checks = [replace(GOOD, limit_s=LONGEST_S), replace(GOOD, limit_s=1.0)]
    assert longest_s(checks) > LONGEST_S
    assert longest_s(checks, unhurried=True) > UNHURRIED * (LONGEST_S + 1.0)
    assert longest_s([]) == 0.0


def points(*names: str) -> list[EntryPoint]:
    return [EntryPoint(name.lower(), f"site_of_tests:{name}", GROUP) for name in names]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "names"),
    [("ONE", ["site-licences"]), ("MORE", ["site-licences", "site-other"]), ("MADE", ["site-licences"])],
)
def test_a_check_a_list_and_a_function_are_taken(name: str, names: list[str]) -> None:
    assert [check.name for check in load_from(points(name), [KNOWN])] == names


BROKEN = [
    pytest.param("ABSENT", "ABSENT", id="plugin-absent"),
    pytest.param("LEAVES", "SystemExit: 3", id="plugin-exits"),
    pytest.param("NUMBER", "TypeError: 'int' object is not callable", id="plugin-no-check"),
    pytest.param("NUMBERS", "expected ftslurm.health.check.Check, found int", id="plugin-list-of-no-checks"),
    pytest.param("TAKEN", "a check named 'host-memory' exists already", id="plugin-name-taken"),
    pytest.param("TWICE", "a check named 'site-licences' exists already", id="plugin-name-twice"),
    pytest.param("NAMELESS", "the name '' is not of letters", id="plugin-nameless"),
    pytest.param("SPACED", "the name 'two words' is not of letters, digits and hyphens", id="plugin-name-spaced"),
    pytest.param("SETLESS", "its sets are []", id="plugin-without-sets"),
    pytest.param("UNKNOWN_SET", "its sets are ['often'], expected of quick, background, thorough", id="plugin-set"),
    pytest.param("ENDLESS", "its limit is inf", id="plugin-endless"),
    pytest.param(
        "LONGER", "its limit is 60.0, expected more than 0 s and at most 25 s", id="plugin-longer-than-a-look"
    ),
    pytest.param("LATE", "late is 'bad'", id="plugin-late"),
    pytest.param("DEAF", "fetch and judge must be functions", id="plugin-deaf"),
]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(("name", "expected"), BROKEN)
def test_a_broken_one_is_unknown_with_its_name_and_costs_the_others_nothing(
    name: str, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    checks = load_from(points(name, "ONE"), [KNOWN])
    looked = run(checks, NODE, {})
    broken, good = looked.verdicts
    assert broken.check == f"plugin-{name.lower()}" and broken.status == UNKNOWN
    assert f"the entry point {name.lower()} = site_of_tests:{name} is broken" in broken.findings[0].text
    assert expected in broken.findings[0].text
    assert good.status == OK and good.summary == "3 licences"
    assert capfd.readouterr().out == ""


def test_absent_entry_points_cost_nothing() -> None:
    code = (
        "import sys; from ftslurm.health.plugins import load;"
        "assert load([]) == []; assert 'importlib.metadata' not in sys.modules"
    )
    paths = [str(Path(ftslurm.__file__).parents[1]), *sys.path]
    subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {paths!r}; {code}"], check=True)


def test_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site_package.py").write_text(
        "from ftslurm.health.check import Check\n"
        "CHECK = Check('site-lamp', 'a lamp', frozenset(('quick',)), 1.0, lambda c: {}, lambda f, b, c: None)\n"
    )
    info = tmp_path / "site_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nlamp = site_package:CHECK\ngone = no_such_package:CHECK\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {check.name for check in load([])}
    assert found == {"site-lamp", "plugin-gone"}


def test_entry_points_that_cannot_be_read_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(group: str) -> None:
        raise ValueError("torn metadata")

    monkeypatch.setattr("ftslurm.health.plugins.find", broken)
    (verdict,) = run(load([]), NODE, {}).verdicts
    assert verdict.status == UNKNOWN == worst(finding.status for finding in verdict.findings)
    assert "the entry points of ftslurm.health cannot be read: ValueError: torn metadata" in verdict.summary
