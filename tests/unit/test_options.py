"""The options of `ftslurm run`: torchrun's, also as variables; each mistake is one line."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.agent.options import RunOptions, UsageError, find_program, parse_run

DEFAULTS = parse_run(["train.py"], {})
VALUES = [
    ("--nnodes", "4", {"nnodes": (4, 4)}),
    ("--nnodes", "2:4", {"nnodes": (2, 4)}),
    ("--nproc-per-node", "8", {"nproc_per_node": "8"}),
    ("--nproc-per-node", "gpu", {"nproc_per_node": "gpu"}),
    ("--nproc-per-node", "cpu", {"nproc_per_node": "cpu"}),
    ("--nproc-per-node", "auto", {"nproc_per_node": "auto"}),
    ("--max-restarts", "0", {"max_restarts": 0}),
    ("--rdzv-id", "my-run", {"rdzv_id": "my-run"}),
    ("--shared-dir", "/s_h-a", {"shared_dir": "/s_h-a"}),
    ("--log-dir", "/l", {"log_dir": "/l"}),
    ("--redirects", "0", {"redirects": 0}),
    ("--redirects", "0:3,1:2", {"redirects": {0: 3, 1: 2}}),
    ("--tee", "3", {"tee": 3}),
    ("--tee", "0:1", {"tee": {0: 1}}),
    ("--role", "trainer", {"role": "trainer"}),
    ("--local-addr", "10.0.0.1", {"local_addr": "10.0.0.1"}),
    ("--local-nodes", "2", {"local_nodes": 2, "health": "off"}),
    ("--grace", "0", {"grace_s": 0.0}),
    ("--heartbeat", "0.5", {"heartbeat_s": 0.5}),
    ("--node-timeout", "60", {"node_timeout_s": 60.0}),
    ("--join-timeout", "1e3", {"join_timeout_s": 1000.0}),
    ("--last-call", "0", {"last_call_s": 0.0}),
    ("--spare-imports", "torch", {"spare_imports": ("torch",)}),
    ("--spare-imports", "torch, transformers.models,torch", {"spare_imports": ("torch", "transformers.models")}),
    ("--health", "watch", {"health": "watch"}),
    ("--health", "off", {"health": "off"}),
    ("--health-every", "0", {"health_every_s": 0.0}),
    ("--health-skip", "gpu-ecc, nic-ports,gpu-ecc", {"health_skip": ("gpu-ecc", "nic-ports")}),
    ("--health-command", "nvidia-smi -q", {"health_command": "nvidia-smi -q"}),
    ("--health-paths", "/data,/ckpt", {"health_paths": ("/data", "/ckpt")}),
    ("--exclude-after", "0", {"exclude_after": 0}),
    ("--exclude-for", "3600", {"exclude_for_s": 3600.0}),
    ("--exclude-dir", "/x", {"exclude_dir": "/x"}),
]
SWITCHES = [("--module", {"module": True}), ("--no-python", {"no_python": True}), ("--drain", {"drain": True})]


def variable(flag: str) -> str:
    return "FTSLURM_" + flag.lstrip("-").upper().replace("-", "_")


def refusal(*arguments: str, **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_run(arguments, environment)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_program_alone_leaves_the_rest_to_slurm_and_the_defaults() -> None:
    assert (DEFAULTS.program, DEFAULTS.arguments) == ("train.py", ())
    assert (DEFAULTS.nnodes, DEFAULTS.rdzv_id, DEFAULTS.shared_dir, DEFAULTS.local_nodes) == (None, None, None, None)
    assert (DEFAULTS.nproc_per_node, DEFAULTS.max_restarts, DEFAULTS.redirects, DEFAULTS.tee) == ("1", 3, 3, None)
    assert (DEFAULTS.role, DEFAULTS.module, DEFAULTS.no_python) == ("default", False, False)


def test_help_tells_the_true_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_run(["--help"], {})
    told = re.findall(r"--([a-z-]+) SECONDS\s[^;]*;\s+default\s+([0-9.]+)", capsys.readouterr().out)
    assert len(told) == 6
    for name, text in told:
        assert getattr(DEFAULTS, name.replace("-", "_") + "_s") == float(text), name


@pytest.mark.parametrize(("flag", "text", "changes"), VALUES)
def test_each_option_can_be_written_in_every_way(flag: str, text: str, changes: dict[str, object]) -> None:
    expected = replace(DEFAULTS, **changes)  # type: ignore[arg-type]
    underscored = "--" + flag[2:].replace("-", "_")
    for written in ([flag, text], [f"{flag}={text}"], [underscored, text], [f"{underscored}={text}"]):
        assert parse_run([*written, "train.py"], {}) == expected, written
    assert parse_run(["train.py"], {variable(flag): text}) == expected


@pytest.mark.parametrize(("flag", "changes"), SWITCHES)
def test_each_switch_can_be_set_by_its_variable_too(flag: str, changes: dict[str, object]) -> None:
    expected = replace(DEFAULTS, **changes)  # type: ignore[arg-type]
    assert parse_run([flag, "train.py"], {}) == expected
    assert parse_run(["--" + flag[2:].replace("-", "_"), "train.py"], {}) == expected
    assert parse_run(["train.py"], {variable(flag): "1"}) == expected
    assert parse_run(["train.py"], {variable(flag): "0"}) == DEFAULTS
    assert "expected 0 or 1" in refusal("train.py", **{variable(flag): "yes"})


def test_torchruns_short_options_are_taken() -> None:
    assert parse_run(["-m", "pkg.train"], {}) == replace(DEFAULTS, module=True, program="pkg.train")
    expected = replace(DEFAULTS, redirects=1, tee={0: 3})
    assert parse_run(["-r", "1", "-t", "0:3", "train.py"], {}) == expected
    assert parse_run(["-r1", "-t=0:3", "train.py"], {}) == expected
    assert parse_run(["-mr1", "-t0:3", "train.py"], {}) == replace(expected, module=True)


def test_the_command_line_is_stronger_than_the_environment_and_an_empty_variable_is_none() -> None:
    environment = {"FTSLURM_MAX_RESTARTS": "7", "FTSLURM_ROLE": ""}
    assert parse_run(["train.py"], environment) == replace(DEFAULTS, max_restarts=7)
    assert parse_run(["--max-restarts", "2", "train.py"], environment) == replace(DEFAULTS, max_restarts=2)


def test_of_an_option_given_twice_the_last_counts() -> None:
    assert parse_run(["--max-restarts", "1", "--max-restarts=2", "train.py"], {}).max_restarts == 2


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
def test_the_programs_own_arguments_are_never_looked_at(rest: tuple[str, ...]) -> None:
    assert parse_run(["train.py", *rest], {}) == replace(DEFAULTS, arguments=rest)
    assert parse_run(["--", "train.py", *rest], {}) == replace(DEFAULTS, arguments=rest)
    assert parse_run(["--tee", "3", "train.py", *rest], {}) == replace(DEFAULTS, tee=3, arguments=rest)


def test_after_two_dashes_the_program_may_look_like_an_option() -> None:
    assert parse_run(["--no-python", "--", "--odd", "x"], {}).program == "--odd"


def test_a_value_that_looks_like_an_option_is_a_value() -> None:
    assert parse_run(["--rdzv-id", "-x", "train.py"], {}).rdzv_id == "-x"
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
        ("--health", "on", "expected one of act, watch, off"),
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


def test_help_says_every_option_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_run(["--help"], {})
    assert caught.value.code == 0
    said = capsys.readouterr().out
    for flag, *_ in [*VALUES, *SWITCHES]:
        assert flag in said


# The program


def options(program: str, **changes: object) -> RunOptions:
    return replace(DEFAULTS, program=program, **changes)  # type: ignore[arg-type]


def test_a_script_or_a_directory_with_a_main_is_found(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert find_program(options(str(script)), "") == str(script)
    (tmp_path / "__main__.py").touch()
    assert find_program(options(str(tmp_path)), "") == str(tmp_path)


def test_a_module_is_left_to_python() -> None:
    assert find_program(options("no.such.module", module=True), "") == "no.such.module"


def test_a_program_is_looked_for_on_the_path(tmp_path: Path) -> None:
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
