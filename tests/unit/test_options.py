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

from ftslurm.agent.option_groups import AUTO, ProgramOptions, RunOptions, TimeoutOptions
from ftslurm.agent.option_table import OPTIONS
from ftslurm.agent.options import find_program, options_record, parse_run
from ftslurm.agent.torchrun_options import (
    NOT_OURS,
    WrongOptions,
    differences,
    takes_value,
    unused_variables,
    variable_of,
)
from ftslurm.monitor.timeouts import Timeouts
from ftslurm.terminal import DEBUG, ERROR, INFO, WARNING, UsageError

DEFAULTS = parse_run(["train.py"], {})
VALUES = [
    ("--nnodes", "4", {"placement.nnodes": (4, 4)}),
    ("--nnodes", "2:4", {"placement.nnodes": (2, 4)}),
    ("--nproc-per-node", "8", {"placement.nproc_per_node": "8"}),
    ("--nproc-per-node", "gpu", {"placement.nproc_per_node": "gpu"}),
    ("--nproc-per-node", "xpu", {"placement.nproc_per_node": "xpu"}),
    ("--nproc-per-node", "cpu", {"placement.nproc_per_node": "cpu"}),
    ("--nproc-per-node", "auto", {"placement.nproc_per_node": "auto"}),
    ("--max-restarts", "0", {"placement.max_restarts": 0}),
    ("--rdzv-id", "my-run", {"placement.rdzv_id": "my-run"}),
    ("--shared-dir", "/s_h-a", {"placement.shared_dir": "/s_h-a"}),
    ("--log-dir", "/l", {"output.log_dir": "/l"}),
    ("--redirects", "0", {"output.redirects": 0, "output.tee": 0, "output.chosen": True}),
    ("--redirects", "0:3,1:2", {"output.redirects": {0: 3, 1: 2}, "output.tee": 0, "output.chosen": True}),
    ("--tee", "3", {"output.tee": 3}),
    ("--tee", "0:1", {"output.tee": {0: 1}}),
    ("--local-ranks-filter", "1, 0", {"output.local_ranks_filter": (0, 1)}),
    ("--duplicate-stdout-filters", "loss,a,,b", {"output.duplicate_stdout_filters": ("loss", "a,b")}),
    ("--duplicate-stderr-filters", "loss", {"output.duplicate_stderr_filters": ("loss",)}),
    ("--signals-to-handle", "SIGTERM, SIGUSR1", {"program.signals_to_handle": "SIGTERM,SIGUSR1"}),
    ("--slurm-env", "none", {"program.slurm_env": "none"}),
    ("--numa-binding", "core-complex", {"program.numa_binding": "core-complex"}),
    ("--role", "trainer", {"program.role": "trainer"}),
    ("--local-addr", "10.0.0.1", {"placement.local_addr": "10.0.0.1"}),
    ("--local-addr", "n1=10.0.0.1,n2=10.0.0.2", {"placement.local_addr": "n1=10.0.0.1,n2=10.0.0.2"}),
    ("--interface", "ib0", {"placement.interface": "ib0"}),
    ("--interface", "10.1.2.3/16", {"placement.interface": "10.1.2.3/16"}),
    ("--port-range", "29500-29600", {"placement.port_range": (29500, 29600)}),
    ("--local-nodes", "2", {"placement.local_nodes": 2, "health.mode": "off"}),
    ("--grace", "0", {"timing.grace_s": 0.0, "stop.grace_s": 0.0}),
    ("--heartbeat", "0.5", {"timing.heartbeat_s": 0.5}),
    ("--node-timeout", "60", {"timing.node_timeout_s": 60.0}),
    ("--join-timeout", "1e3", {"timing.join_timeout_s": 1000.0}),
    ("--last-call", "0", {"timing.last_call_s": 0.0}),
    ("--warm-imports", "torch", {"program.warm_imports": ("torch",)}),
    (
        "--warm-imports",
        "torch, transformers.models,torch",
        {"program.warm_imports": ("torch", "transformers.models")},
    ),
    ("--warm-imports", "auto", {"program.warm_imports": AUTO}),
    ("--warm-imports", "off", {"program.warm_imports": ()}),
    (
        "--worker-prefix",
        "apptainer exec 'my image.sif'",
        {"program.prefix": ("apptainer", "exec", "my image.sif"), "program.warm_imports": ()},
    ),
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
    ("--virtual-local-rank", {"program.virtual_local_rank": True}),
    ("--dry-run", {"placement.dry_run": True}),
    ("--quiet", {"output.quiet": True, "output.level": ERROR}),
    ("--verbose", {"output.verbose": True, "output.level": DEBUG}),
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
    assert "\n" not in text or isinstance(caught.value, WrongOptions)
    return text


def test_a_program_alone_leaves_the_rest_to_slurm_and_the_defaults() -> None:
    assert DEFAULTS.program == ProgramOptions(False, False, "default", AUTO, (), "train.py", ())
    placement, output = DEFAULTS.placement, DEFAULTS.output
    assert (placement.nnodes, placement.rdzv_id, placement.shared_dir, placement.local_nodes) == (None,) * 4
    assert (placement.nproc_per_node, placement.max_restarts, output.redirects, output.tee) == ("1", 3, 3, None)


def test_help_shows_the_true_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_run(["--help-all"], {})
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


@pytest.mark.parametrize(
    ("arguments", "environment", "level"),
    [
        ((), {}, INFO),
        ((), {"FTSLURM_LOG_LEVEL": "error"}, ERROR),
        ((), {"FTSLURM_LOG_LEVEL": "WARNING"}, WARNING),
        ((), {"LOGLEVEL": "DEBUG"}, DEBUG),
        ((), {"LOGLEVEL": "WARN"}, WARNING),
        ((), {"LOGLEVEL": "35"}, ERROR),
        ((), {"LOGLEVEL": "99"}, ERROR),
        ((), {"LOGLEVEL": "trace"}, INFO),
        ((), {"LOGLEVEL": ""}, INFO),
        ((), {"FTSLURM_LOG_LEVEL": "info", "LOGLEVEL": "DEBUG"}, INFO),
        ((), {"FTSLURM_LOG_LEVEL": "", "LOGLEVEL": "DEBUG"}, DEBUG),
        ((), {"FTSLURM_QUIET": "1", "FTSLURM_LOG_LEVEL": "debug"}, ERROR),
        (("--quiet",), {"FTSLURM_LOG_LEVEL": "debug", "LOGLEVEL": "INFO"}, ERROR),
        (("-v",), {"FTSLURM_LOG_LEVEL": "error"}, DEBUG),
        (("-v",), {"FTSLURM_QUIET": "1"}, DEBUG),
        (("--quiet",), {"FTSLURM_VERBOSE": "1"}, ERROR),
    ],
)
def test_the_log_level_is_that_of_the_options_then_our_variable_then_torchruns(
    arguments: tuple[str, ...], environment: dict[str, str], level: int
) -> None:
    assert parse_run([*arguments, "train.py"], environment).output.level == level


def test_a_level_that_is_none_is_refused_in_our_variable_only() -> None:
    message = refusal("train.py", FTSLURM_LOG_LEVEL="loud")
    assert (
        message == "FTSLURM_LOG_LEVEL (in the environment): expected one of error, warning, info, debug, found 'loud'"
    )
    both = {"FTSLURM_QUIET": "1", "FTSLURM_VERBOSE": "1"}
    assert "--quiet and --verbose: only one of them" in refusal("train.py", **both)


def test_torchruns_short_options_are_taken() -> None:
    module = {"program.module": True}
    assert parse_run(["-m", "pkg.train"], {}) == changed(DEFAULTS, {**module, "program.name": "pkg.train"})
    expected = changed(DEFAULTS, {"output.redirects": 1, "output.tee": {0: 3}, "output.chosen": True})
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


def test_workers_in_containers_are_not_started_ahead() -> None:
    assert parse_run(["--worker-prefix", "apptainer exec x", "train.py"], {}).program.warm_imports == ()
    assert "in a container yet" in refusal("--worker-prefix", "apptainer exec x", "--warm-imports", "auto", "train.py")


def test_the_former_name_of_an_option_is_answered_with_the_new_one() -> None:
    assert "use --warm-imports" in refusal("--spare-imports", "torch", "train.py")


@pytest.mark.parametrize(
    ("flag", "text", "expected"),
    [
        ("--nnodes", "0", "1 <= MIN <= MAX"),
        ("--nnodes", "3:2", "1 <= MIN <= MAX"),
        ("--warm-imports", "torch,", "names of modules"),
        ("--warm-imports", "torch numpy", "auto, off or names of modules"),
        ("--warm-imports", "os.path..x", "names of modules"),
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
        ("--numa-binding", "numa", "expected one of node, socket, exclusive, core-complex"),
        ("--health-skip", "gpu-ecc,,x", "expected comma-separated names"),
        ("--redirects", "7", "expected 0, 1, 2 or 3"),
        ("--local-ranks-filter", "0,x", "expected local ranks, such as 0,1"),
        ("--duplicate-stdout-filters", "a,", "expected comma-separated texts"),
        ("--signals-to-handle", "SIGTERM,SIGCONT", "no other signal is handled"),
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
    for message in (refusal(flag, text, "train.py"), refusal(f"{flag}={text}", "train.py")):
        assert message.startswith(flag)
        assert expected in message
    if text:
        message = refusal("train.py", **{variable(flag): text})
        assert message.startswith(f"{variable(flag)} (in the environment)")
        assert expected in message


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
        (("--quiet", "-v", "train.py"), "--quiet and --verbose: only one of them"),
        (
            ("--heartbeat=1", "--node-timeout", "1.5", "train.py"),
            "--node-timeout 1.5: expected at least twice --heartbeat (1)",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: tuple[str, ...], expected: str) -> None:
    assert expected in refusal(*arguments)


# torchrun's others, and its variables


@pytest.mark.parametrize("flag", NOT_OURS)
def test_an_option_that_only_torchrun_has_is_explained(flag: str) -> None:
    underscored = "--" + flag[2:].replace("-", "_")
    for typed in (flag, underscored):
        message = refusal(typed, *(["x"] if takes_value(flag) else []), "train.py", "--x").splitlines()
        assert message == [
            "1 option of torchrun to be dropped:",
            f"  {typed}: {NOT_OURS[flag]}",
            f"use: ftslurm run {'--nnodes 1 ' if flag == '--standalone' else ''}train.py --x",
        ]
        assert refusal(f"{typed}=x", "train.py", "--x").splitlines() == message


OLD_LINE = (
    "--nnodes 2 --nproc_per_node=8 --rdzv-backend c10d --rdzv_endpoint=n1:29500 --rdzv-id 7 --node-rank 1 "
    "--rdzv-conf=join_timeout=900,read_timeout=60,last_call_timeout=5 --standalone -mr3 --max-restarts 2 "
    "pkg.train --x 1"
)


def test_all_options_to_be_dropped_are_in_one_message_with_the_corrected_line() -> None:
    first, *dropped, use = refusal(*OLD_LINE.split()).splitlines()
    assert first == "5 options of torchrun to be dropped:"
    flags = [line.split(":")[0].strip() for line in dropped]
    assert flags == ["--rdzv-backend", "--rdzv_endpoint", "--node-rank", "--rdzv-conf", "--standalone"]
    assert use == (
        "use: ftslurm run --join-timeout 900 --last-call 5 --nnodes 2 --nproc_per_node=8 --rdzv-id 7 -m -r3 "
        "--max-restarts 2 pkg.train --x 1"
    )
    parsed = parse_run(use.split()[3:], {})
    assert (parsed.timing.join_timeout_s, parsed.timing.last_call_s, parsed.program.name) == (900, 5, "pkg.train")


def test_quotes_that_a_shell_left_are_not_in_the_corrected_line() -> None:
    use = refusal("--rdzv-conf='last_call_timeout=1,join_timeout=900'", "train.py").splitlines()[-1]
    assert use == "use: ftslurm run --last-call 1 --join-timeout 900 train.py"


def test_torchruns_variables_count_below_ours_and_below_the_command_line() -> None:
    pet = {"PET_NPROC_PER_NODE": "4", "PET_MAX_RESTARTS": "1", "PET_MODULE": "1", "PET_ROLE": ""}
    expected = {"placement.nproc_per_node": "4", "placement.max_restarts": 1, "program.module": True}
    assert parse_run(["train.py"], pet) == changed(DEFAULTS, expected)
    ours = {**pet, "FTSLURM_MAX_RESTARTS": "2"}
    assert parse_run(["train.py"], ours).placement.max_restarts == 2
    assert parse_run(["--max-restarts", "5", "train.py"], ours).placement.max_restarts == 5
    assert refusal("train.py", PET_NNODES="two").startswith("PET_NNODES (in the environment) two: expected")
    # Ours alone: torchrun would not read it.
    assert parse_run(["train.py"], {"PET_JOIN_TIMEOUT": "1"}) == DEFAULTS


@pytest.mark.parametrize(
    ("arguments", "environment", "grace_s"),
    [
        ((), {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "40"}, 40.0),
        ((), {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "40", "PET_SHUTDOWN_TIMEOUT": "50"}, 50.0),
        ((), {"PET_SHUTDOWN_TIMEOUT": "50", "FTSLURM_GRACE": "60"}, 60.0),
        (("--shutdown-timeout", "70"), {"FTSLURM_GRACE": "60"}, 70.0),
    ],
)
def test_torchruns_shutdown_timeout_is_the_grace(
    arguments: tuple[str, ...], environment: dict[str, str], grace_s: float
) -> None:
    assert parse_run([*arguments, "train.py"], environment).timing.grace_s == grace_s


FILES = "all output goes to files in /run/rounds/…/ranks/; "


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ("", {}, [FILES + "rank 0's is also shown here (--tee 3: of all ranks)"]),
        ("--tee 0:3", {}, [FILES + "that of the chosen ranks is"]),
        ("--tee 3", {}, []),
        ("-r 0", {}, []),
        ("-r 3 -t 0:3", {}, []),
        ("-r 0 --signals-to-handle SIGTERM", {}, []),
        (
            "-r 0 --signals-to-handle SIGTERM,SIGUSR1",
            {},
            ["--signals-to-handle: SIGUSR1 is passed on to the ranks"],
        ),
        (
            "-r 0",
            {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "h:1", "PET_NNODES": "2", "PET_NODE_RANK": ""},
            [
                "not used here of the environment: PET_RDZV_BACKEND (the shared directory is the rendezvous); "
                "PET_RDZV_ENDPOINT (the shared directory is the rendezvous, no host or port is needed)"
            ],
        ),
    ],
)
def test_what_torchrun_would_do_otherwise_is_reported(
    arguments: str, environment: dict[str, str], expected: list[str]
) -> None:
    found = differences(parse_run([*arguments.split(), "train.py"], environment), environment, "/run")
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True)), found


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--nproc", "--nproc-per-node"),
        ("--max-restart", "--max-restarts"),
        ("--redirect=1", "--redirects"),
        ("--reqeue", "--requeue"),
        ("--bogus", None),
        ("--no", None),
    ],
)
def test_a_misspelt_or_abbreviated_option_names_the_one_that_was_meant(flag: str, meant: str | None) -> None:
    message = refusal(flag, "x", "train.py")
    question = f"did you mean {meant}? " if meant else ""
    assert message == f"unknown option {flag.partition('=')[0]}; {question}see ftslurm run --help-all"


def test_all_mistakes_are_in_one_message_with_the_corrected_line() -> None:
    """Also those that are no options of torchrun: a second submission must not meet the next one."""
    message = refusal(
        "--nproc_per_nod=8", "--max_restarts=x", "--rdzv-backnd", "c10d", "--tea", "3", "-r", "9", "train.py", "-x"
    )
    *lines, redirects, use = message.splitlines()
    assert redirects.startswith("  --redirects '9': expected 0, 1, 2 or 3")
    corrected = "ftslurm run --nproc-per-node=8 --max_restarts=N --tee 3 -r '0|1|2|3|R:S,…' train.py -x"
    assert use == f"use, with right values: {corrected}"
    assert lines == [
        "1 option of torchrun to be dropped and 4 mistakes in the options:",
        "  --rdzv-backnd: the shared directory is the rendezvous",
        "  unknown option --nproc_per_nod; did you mean --nproc-per-node? see ftslurm run --help-all",
        "  unknown option --tea; did you mean --tee? see ftslurm run --help-all",
        "  --max-restarts x: expected a whole number from 0 on",
    ]


def test_without_the_meaning_of_an_option_there_is_no_corrected_line() -> None:
    message = refusal("--rdzv-backend", "c10d", "--bogus", "3", "train.py")
    assert message.splitlines() == [
        "1 option of torchrun to be dropped and 1 mistake in the options:",
        "  --rdzv-backend: the shared directory is the rendezvous",
        "  unknown option --bogus; see ftslurm run --help-all",
    ]
    # Without it, the program would run with less than was asked for.
    assert "use:" not in refusal("--rdzv-backend", "c10d", "--n_procs=3", "train.py")


def test_options_after_an_unknown_one_are_in_the_message() -> None:
    given = "--num_processes 2 --mixed_precision bf16 --multi_gpu --use_env --rdzv-backend c10d t.py --lr 1"
    message = refusal(*given.split())
    assert message.splitlines() == [
        "2 options of torchrun to be dropped and 3 mistakes in the options:",
        "  --use_env: LOCAL_RANK is always in the ranks' environment",
        "  --rdzv-backend: the shared directory is the rendezvous",
        "  unknown option --num_processes; accelerate's is of all nodes together; --nproc-per-node is of each",
        "  unknown option --mixed_precision; see ftslurm run --help-all",
        "  unknown option --multi_gpu; see ftslurm run --help-all",
    ]


@pytest.mark.parametrize(
    ("given", "mistake", "use"),
    [
        ("--node_rank --master_addr h train.py", "--node_rank: expected a value after it, found '--master_addr'", ""),
        ("--master_port train.py --epochs 3", "--master_port: expected a value after it, found 'train.py'", ""),
        (
            "--standalone --max-restarts --tee 3 t.py",
            "--max-restarts: expected a value after it, found '--tee'",
            "N",
        ),
    ],
)
def test_an_option_without_its_value_takes_no_other_one_and_no_script(given: str, mistake: str, use: str) -> None:
    """As where a variable of the shell is not set."""
    *lines, last = refusal(*given.split()).splitlines()
    assert f"  {mistake}" in lines
    if use:
        assert last == "use, with right values: ftslurm run --nnodes 1 --max-restarts N --tee 3 t.py"
    else:
        assert last == f"use: ftslurm run train.py{' --epochs 3' if 'epochs' in given else ''}"


def test_without_a_program_there_is_no_corrected_line() -> None:
    message = refusal("--master_port", "1", "--standalone").splitlines()
    assert message[-1] == "  expected a program to run"


def test_wrong_variables_and_wrong_options_are_one_message() -> None:
    message = refusal("--max-restarts", "-1", "train.py", FTSLURM_NNODES="two").splitlines()
    assert len(message) == 4
    assert message[1].startswith("  FTSLURM_NNODES (in the environment) two: expected")
    assert message[3] == "use, with right values: ftslurm run --max-restarts N train.py"


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
    assert record["log_level"] == INFO
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
        name = "--" + flag.lstrip("-").replace("_", "-")
        if not flag.startswith("--"):
            assert any(flag in option.flags for option in OPTIONS), flag
            continue
        taken = [option for option in OPTIONS if name in option.flags]
        assert (name in NOT_OURS) != bool(taken), flag
        # One that torchrun reads from the environment is read there, or named as not used.
        pet = "PET_" + name[2:].replace("-", "_").upper()
        if name not in ("--logs-specs", "--numa-binding"):
            unused = unused_variables({pet: "1"})
            assert [variable_of(option) for option in taken] == [pet] if taken else pet in str(unused), flag


def test_help_lists_every_option_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_run(["--help-all"], {})
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    for option in OPTIONS:
        assert all(flag in printed for flag in option.flags)


def test_help_is_short_and_names_where_the_others_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_run(["--help"], {})
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"^  -", printed, re.M)) == 10 + 1
    assert f"{len(OPTIONS) - 10} more options in groups: ftslurm run --help-all" in " ".join(printed.split())
    assert len(printed.splitlines()) <= 50


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


def test_a_script_of_almost_that_name_is_named(tmp_path: Path) -> None:
    for name in ("train.py", "evaluate.py", "trial.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=f"trian.py: no such script; {tmp_path}/train.py is there; expected"):
        find_program(options(f"{tmp_path}/trian.py"), "")
    with pytest.raises(UsageError, match="no such script \\(in "):
        find_program(options(f"{tmp_path}/bogus.py"), "")


def test_a_program_in_place_of_the_script_is_refused_with_the_command_that_runs_it(tmp_path: Path) -> None:
    (tmp_path / "tool").touch(mode=0o755)
    with pytest.raises(UsageError, match=r"leave it out: .* ftslurm run train\.py …"):
        find_program(parse_run(["python3", "train.py"], {}).program, "")
    with pytest.raises(UsageError, match=r"leave it out: .* ftslurm run -m …"):
        find_program(parse_run(["python", "-m", "train"], {}).program, "")
    (tmp_path / "python").touch(mode=0o755)
    with pytest.raises(UsageError, match="ftslurm run --no-python python …"):
        find_program(parse_run(["python", "-c", "pass"], {}).program, str(tmp_path))
    with pytest.raises(UsageError, match="ftslurm run --no-python tool …"):
        find_program(options("tool"), str(tmp_path))


def test_a_shell_script_is_refused_with_the_command_that_runs_it(tmp_path: Path) -> None:
    (tmp_path / "train.sh").touch(mode=0o755)
    with pytest.raises(UsageError, match=rf"a shell script, .* ftslurm run --no-python {tmp_path}/train\.sh executes"):
        find_program(options(f"{tmp_path}/train.sh"), "")
    assert find_program(options(f"{tmp_path}/train.sh", no_python=True), "") == f"{tmp_path}/train.sh"


def test_a_directory_without_a_main_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"without __main__\.py"):
        find_program(options(str(tmp_path)), "")


def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="cannot be read"):
        find_program(options(str(script)), "")
