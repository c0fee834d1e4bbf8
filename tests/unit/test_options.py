"""The options of `ftslurm run`: torchrun's, also as variables; each mistake is one line."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.agent.option_groups import ProgramOptions, RunOptions, TimeoutOptions
from ftslurm.agent.option_table import OPTIONS
from ftslurm.agent.options import find_program, options_record, parse_run
from ftslurm.monitor.timeouts import Timeouts
from ftslurm.terminal import UsageError

DEFAULTS = parse_run(["train.py"], {})
VALUES = [
    ("--nnodes", "4", {"placement.nnodes": (4, 4)}),
    ("--nnodes", "2:4", {"placement.nnodes": (2, 4)}),
    ("--nproc-per-node", "8", {"placement.nproc_per_node": "8"}),
    ("--nproc-per-node", "gpu", {"placement.nproc_per_node": "gpu"}),
    ("--nproc-per-node", "cpu", {"placement.nproc_per_node": "cpu"}),
    ("--nproc-per-node", "auto", {"placement.nproc_per_node": "auto"}),
    ("--max-restarts", "0", {"placement.max_restarts": 0}),
    ("--rdzv-id", "my-run", {"placement.rdzv_id": "my-run"}),
    ("--shared-dir", "/s_h-a", {"placement.shared_dir": "/s_h-a"}),
    ("--log-dir", "/l", {"output.log_dir": "/l"}),
    ("--redirects", "0", {"output.redirects": 0}),
    ("--redirects", "0:3,1:2", {"output.redirects": {0: 3, 1: 2}}),
    ("--tee", "3", {"output.tee": 3}),
    ("--tee", "0:1", {"output.tee": {0: 1}}),
    ("--role", "trainer", {"program.role": "trainer"}),
    ("--local-addr", "10.0.0.1", {"placement.local_addr": "10.0.0.1"}),
    ("--interface", "ib0", {"placement.interface": "ib0"}),
    ("--interface", "10.1.2.3/16", {"placement.interface": "10.1.2.3/16"}),
    ("--port-range", "29500-29600", {"placement.port_range": (29500, 29600)}),
    ("--local-nodes", "2", {"placement.local_nodes": 2, "health.mode": "off"}),
    ("--grace", "0", {"timing.grace_s": 0.0, "stop.grace_s": 0.0}),
    ("--heartbeat", "0.5", {"timing.heartbeat_s": 0.5}),
    ("--node-timeout", "60", {"timing.node_timeout_s": 60.0}),
    ("--join-timeout", "1e3", {"timing.join_timeout_s": 1000.0}),
    ("--last-call", "0", {"timing.last_call_s": 0.0}),
    ("--spare-imports", "torch", {"program.spare_imports": ("torch",)}),
    (
        "--spare-imports",
        "torch, transformers.models,torch",
        {"program.spare_imports": ("torch", "transformers.models")},
    ),
    ("--worker-prefix", "apptainer exec 'my image.sif'", {"program.prefix": ("apptainer", "exec", "my image.sif")}),
    ("--health", "report", {"health.mode": "report"}),
    ("--health", "off", {"health.mode": "off"}),
    ("--health-every", "0", {"health.every_s": 0.0}),
    ("--health-skip", "gpu-ecc, nic-ports,gpu-ecc", {"health.skip": ("gpu-ecc", "nic-ports")}),
    ("--health-command", "nvidia-smi -q", {"health.command": "nvidia-smi -q"}),
    ("--health-paths", "/data,/ckpt", {"health.paths": ("/data", "/ckpt")}),
    ("--exclude-after", "0", {"exclusion.after": 0}),
    ("--exclude-for", "3600", {"exclusion.for_s": 3600.0}),
    ("--exclude-dir", "/x", {"exclusion.directory": "/x"}),
    ("--on-event", "mail -s x me", {"events.command": "mail -s x me"}),
]
SWITCHES = [
    ("--module", {"program.module": True}),
    ("--no-python", {"program.no_python": True}),
    ("--drain", {"exclusion.drain": True}),
    ("--dry-run", {"placement.dry_run": True}),
]


def changed(options: RunOptions, changes: dict[str, object]) -> RunOptions:
    """Return the options with changed fields, each named as group.field."""
    for name, value in changes.items():
        group, _, field = name.partition(".")
        options = replace(options, **{group: replace(getattr(options, group), **{field: value})})
    return options


def variable(flag: str) -> str:
    return "FTSLURM_" + flag.lstrip("-").upper().replace("-", "_")


def refusal(*arguments: str, **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_run(arguments, environment)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_program_alone_leaves_the_rest_to_slurm_and_the_defaults() -> None:
    assert DEFAULTS.program == ProgramOptions(False, False, "default", (), (), "train.py", ())
    placement, output = DEFAULTS.placement, DEFAULTS.output
    assert (placement.nnodes, placement.rdzv_id, placement.shared_dir, placement.local_nodes) == (None,) * 4
    assert (placement.nproc_per_node, placement.max_restarts, output.redirects, output.tee) == ("1", 3, 3, None)


def test_help_shows_the_true_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_run(["--help"], {})
    printed = re.findall(r"--([a-z-]+) SECONDS\s[^;]*;\s+default\s+([0-9.]+)", capsys.readouterr().out)
    assert len(printed) == 6
    for name, text in printed:
        assert options_record(DEFAULTS)[name.replace("-", "_") + "_s"] == float(text), name


@pytest.mark.parametrize(("flag", "text", "changes"), VALUES)
def test_each_option_can_be_written_in_every_way(flag: str, text: str, changes: dict[str, object]) -> None:
    expected = changed(DEFAULTS, changes)
    underscored = "--" + flag[2:].replace("-", "_")
    for written in ([flag, text], [f"{flag}={text}"], [underscored, text], [f"{underscored}={text}"]):
        assert parse_run([*written, "train.py"], {}) == expected, written
    assert parse_run(["train.py"], {variable(flag): text}) == expected


@pytest.mark.parametrize(("flag", "changes"), SWITCHES)
def test_each_switch_can_be_set_by_its_variable_too(flag: str, changes: dict[str, object]) -> None:
    expected = changed(DEFAULTS, changes)
    assert parse_run([flag, "train.py"], {}) == expected
    assert parse_run(["--" + flag[2:].replace("-", "_"), "train.py"], {}) == expected
    assert parse_run(["train.py"], {variable(flag): "1"}) == expected
    assert parse_run(["train.py"], {variable(flag): "0"}) == DEFAULTS
    assert "expected 0 or 1" in refusal("train.py", **{variable(flag): "yes"})


def test_torchruns_short_options_are_taken() -> None:
    module = {"program.module": True}
    assert parse_run(["-m", "pkg.train"], {}) == changed(DEFAULTS, {**module, "program.name": "pkg.train"})
    expected = changed(DEFAULTS, {"output.redirects": 1, "output.tee": {0: 3}})
    assert parse_run(["-r", "1", "-t", "0:3", "train.py"], {}) == expected
    assert parse_run(["-r1", "-t=0:3", "train.py"], {}) == expected
    assert parse_run(["-mr1", "-t0:3", "train.py"], {}) == changed(expected, module)


def test_the_command_line_is_stronger_than_the_environment_and_an_empty_variable_is_none() -> None:
    environment = {"FTSLURM_MAX_RESTARTS": "7", "FTSLURM_ROLE": ""}
    assert parse_run(["train.py"], environment) == changed(DEFAULTS, {"placement.max_restarts": 7})
    assert parse_run(["--max-restarts", "2", "train.py"], environment) == changed(
        DEFAULTS, {"placement.max_restarts": 2}
    )


def test_a_notice_with_a_slash_is_a_file_and_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("./notice", "dir/leave", f"{tmp_path}/notice"):
        when = parse_run(["--stop-when", text, "train.py"], {}).stop.stop_when
        assert when is not None
        assert (when.file, when.command) == (os.path.abspath(text), None)
    for text in ("true", "/bin/true", "test -e ./notice"):
        when = parse_run(["--stop-when", text, "train.py"], {}).stop.stop_when
        assert when is not None
        assert (when.file, when.command) == (None, text)


def test_of_an_option_given_twice_the_last_counts() -> None:
    assert parse_run(["--max-restarts", "1", "--max-restarts=2", "train.py"], {}).placement.max_restarts == 2


@pytest.mark.parametrize(
    "rest",
    [
        ("--nnodes", "0", "--max_restarts=x", "--rdzv-backend=c10d"),
        ("--", "a", "--", "b"),
        ("-m", "-h", "--help", "--no-python"),
        ("--lr=1e-3", "--under_scored", "a_b", ""),
        ("-1", "@file", "*"),
    ],
)
def test_the_programs_own_arguments_are_never_parsed(rest: tuple[str, ...]) -> None:
    assert parse_run(["train.py", *rest], {}) == changed(DEFAULTS, {"program.arguments": rest})
    assert parse_run(["--", "train.py", *rest], {}) == changed(DEFAULTS, {"program.arguments": rest})
    assert parse_run(["--tee", "3", "train.py", *rest], {}) == changed(
        DEFAULTS, {"output.tee": 3, "program.arguments": rest}
    )


def test_after_two_dashes_the_program_may_begin_like_an_option() -> None:
    assert parse_run(["--no-python", "--", "--odd", "x"], {}).program.name == "--odd"


def test_a_value_that_begins_like_an_option_is_a_value() -> None:
    assert parse_run(["--rdzv-id", "-x", "train.py"], {}).placement.rdzv_id == "-x"
    assert "--max-restarts -1" in refusal("--max-restarts", "-1", "train.py")


@pytest.mark.parametrize(
    ("flag", "text", "expected"),
    [
        ("--nnodes", "0", "1 <= MIN <= MAX"),
        ("--nnodes", "3:2", "1 <= MIN <= MAX"),
        ("--spare-imports", "torch,", "names of modules"),
        ("--spare-imports", "torch numpy", "names of modules"),
        ("--spare-imports", "os.path..x", "names of modules"),
        ("--nnodes", "0:2", "1 <= MIN <= MAX"),
        ("--nnodes", "two", "a number of nodes, or MIN:MAX"),
        ("--nnodes", "1:", "a number of nodes, or MIN:MAX"),
        ("--nnodes", ":2", "a number of nodes, or MIN:MAX"),
        ("--nnodes", "1:2:3", "a number of nodes, or MIN:MAX"),
        ("--nnodes", "-1", "a number of nodes, or MIN:MAX"),
        ("--nnodes", "²", "a number of nodes, or MIN:MAX"),
        ("--nproc-per-node", "0", "a number of workers from 1 on"),
        ("--nproc-per-node", "-2", "a number of workers from 1 on"),
        ("--nproc-per-node", "1.5", "a number of workers from 1 on"),
        ("--nproc-per-node", "tpu", "a number of workers from 1 on"),
        ("--nproc-per-node", "²", "a number of workers from 1 on"),
        ("--nproc-per-node", "9" * 5000, "a number of workers from 1 on"),
        ("--max-restarts", "many", "a whole number from 0 on"),
        ("--max-restarts", "²", "a whole number from 0 on"),
        ("--local-nodes", "0", "a whole number from 1 on"),
        ("--health", "on", "expected one of act, report, off"),
        ("--health-skip", "gpu-ecc,,x", "expected comma-separated names"),
        ("--redirects", "7", "expected 0, 1, 2 or 3"),
        ("--tee", "x:1", "expected 0, 1, 2 or 3"),
        ("--tee", "²:1", "expected 0, 1, 2 or 3"),
        ("--grace", "soon", "seconds, at least 0"),
        ("--grace", "-1", "seconds, at least 0"),
        ("--grace", "nan", "seconds, at least 0"),
        ("--grace", "inf", "seconds, at least 0"),
        ("--heartbeat", "0", "seconds, at least 0.01"),
        ("--node-timeout", "0", "seconds, at least 0.1"),
        ("--join-timeout", "", "seconds, at least 0.1"),
        ("--rdzv-id", "", "expected a value, found an empty one"),
        ("--shared-dir", "", "expected a value, found an empty one"),
        ("--on-event", "  ", "expected a value, found a blank one"),
        ("--stop-when", "  ", "expected a file, a command or drain, found a blank value"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(flag: str, text: str, expected: str) -> None:
    for said in (refusal(flag, text, "train.py"), refusal(f"{flag}={text}", "train.py")):
        assert said.startswith(flag)
        assert expected in said
    if text:
        said = refusal("train.py", **{variable(flag): text})
        assert said.startswith(f"{variable(flag)} (in the environment)")
        assert expected in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "expected a program to run"),
        (("--nnodes", "2"), "expected a program to run"),
        (("--",), "expected a program to run"),
        (("--nnodes",), "--nnodes: expected a value after it"),
        (("--bogus", "train.py"), "--bogus"),
        (("--nnode", "2", "train.py"), "--nnode"),
        (("--max-restart=2", "train.py"), "--max-restart"),
        (("-x", "train.py"), "unknown option -x"),
        (("-mx", "train.py"), "-x"),
        (("-m=1", "train.py"), "-m: expected no value, found '1'"),
        (("--module=1", "train.py"), "--module: expected no value, found '1'"),
        (("--redirects=", "train.py"), "--redirects ''"),
        (("--module", "--no-python", "train.py"), "only one of them"),
        (
            ("--heartbeat=1", "--node-timeout", "1.5", "train.py"),
            "--node-timeout 1.5: expected at least twice --heartbeat (1)",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: tuple[str, ...], expected: str) -> None:
    assert expected in refusal(*arguments)


@pytest.mark.parametrize(
    "flag",
    [
        "--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf", "--standalone", "--node-rank", "--master-addr",
        "--master-port", "--monitor-interval", "--start-method", "--run-path", "--local-ranks-filter",
        "--event-log-handler", "--duplicate-stdout-filters", "--duplicate-stderr-filters", "--logs-specs",
        "--numa-binding", "--signals-to-handle", "--shutdown-timeout", "--virtual-local-rank",
    ],
)  # fmt: skip
def test_an_option_that_only_torchrun_has_is_explained(flag: str) -> None:
    underscored = "--" + flag[2:].replace("-", "_")
    for written in (flag, f"{flag}=x", underscored, f"{underscored}=x"):
        said = refusal(written, "x", "train.py")
        assert f"{written.partition('=')[0]} is an option of torchrun, not of ftslurm: " in said
        assert "  " not in said


def test_time_outs_of_ranks_are_one_group_and_off_in_it_is_infinite() -> None:
    given = ["--heartbeat-timeout", "60", "--initial-heartbeat-timeout=off", "--section-timeouts", "eval=5,a=off"]
    given += ["--warmup-steps=3", "--warmup-timeout", "9", "--hang-timeout=120", "--hang-signal=TERM"]
    sections = {"eval": 5.0, "a": math.inf}
    expected = Timeouts(math.inf, 60.0, sections, None, warmup_steps=3, warmup_s=9.0, hang_s=120.0)
    assert parse_run([*given, "train.py"], {}).timeouts == TimeoutOptions(expected, signal.SIGTERM)


def test_the_attempts_record_has_every_option_by_its_name() -> None:
    parsed = parse_run(["--section-timeouts", "eval=off", "--exclude-for=60", "--health=report", "train.py", "x"], {})
    record = json.loads(json.dumps(options_record(parsed), allow_nan=False))
    assert record["timeouts"] == {"sections": {"eval": "off"}}
    assert (record["exclude_for_s"], record["health"], record["grace_s"]) == (60.0, "report", 15.0)
    assert (record["program"], record["arguments"], record["hang_signal"]) == ("train.py", ["x"], signal.SIGKILL)
    in_timeouts = {"heartbeat_timeout", "initial_heartbeat_timeout", "section_timeouts", "out_of_section_timeout"}
    in_timeouts |= {"warmup_steps", "warmup_timeout", "hang_timeout"}
    assert {option.name for option in OPTIONS} - in_timeouts <= {name.removesuffix("_s") for name in record}


def torchruns_options() -> list[str]:
    """Read them from torch's source, for importing torch takes seconds."""
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        pytest.skip("torch is not installed")
    source = Path(torch.submodule_search_locations[0], "distributed/run.py").read_text()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    added = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    names = [argument.value for call in added for argument in call.args if isinstance(argument, ast.Constant)]
    return [name for name in names if isinstance(name, str) and name.startswith("-")]


def test_all_of_torchruns_options_are_either_taken_or_explained() -> None:
    flags = torchruns_options()
    assert "--nnodes" in flags
    for flag in flags:
        said = refusal(flag, "--bogus")
        assert f"unknown option {flag}" not in said, flag


def test_help_lists_every_option_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_run(["--help"], {})
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    for flag, *_ in [*VALUES, *SWITCHES]:
        assert flag in printed


# The program


def options(name: str, **changes: bool) -> ProgramOptions:
    return replace(DEFAULTS.program, name=name, **changes)


def test_a_script_or_a_directory_with_a_main_is_found(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert find_program(options(str(script)), "") == str(script)
    (tmp_path / "__main__.py").touch()
    assert find_program(options(str(tmp_path)), "") == str(tmp_path)


def test_a_module_is_left_to_python() -> None:
    assert find_program(options("no.such.module", module=True), "") == "no.such.module"


def test_a_program_is_searched_on_the_path(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.touch(mode=0o755)
    (tmp_path / "text").touch(mode=0o644)
    path = f"/nowhere:{tmp_path}"
    assert find_program(options("tool", no_python=True), path) == str(tool)
    assert find_program(options(str(tool), no_python=True), "") == str(tool)
    for wrong in ("text", "missing", str(tmp_path), ""):
        with pytest.raises(UsageError, match="no such program"):
            find_program(options(wrong, no_python=True), path)


@pytest.mark.parametrize(("name", "expected"), [("missing.py", "no such script"), ("", "no such script")])
def test_a_script_that_is_not_there_is_named(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        find_program(options(str(tmp_path / name) if name else ""), "")


def test_a_directory_without_a_main_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"without __main__\.py"):
        find_program(options(str(tmp_path)), "")


def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="cannot be read"):
        find_program(options(str(script)), "")
