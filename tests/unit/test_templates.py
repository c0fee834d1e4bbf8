"""`ftslurm template`: each batch script is complete, and a filled-in one passes on the arguments exactly."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ftslurm.templates import filled, main
from ftslurm.terminal import UsageError

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = {path.stem: path.read_text() for path in sorted((ROOT / "sbatch_templates").glob("*.sbatch"))}
HOSTILE = ["train me.py", "it's", '"quoted"', "$HOME", "`id`", "$(id)", "a\nb", "", "--", "*", "#no", "\\", "-x=é"]
SHOW = "#!/bin/bash\nprintf '%s\\0' \"$@\"\n"


def directives(text: str) -> dict[str, str]:
    return dict(
        line.removeprefix("#SBATCH --").partition("=")[::2] for line in text.splitlines() if line[:7] == "#SBATCH"
    )


def test_all_kinds_of_jobs_have_a_template() -> None:
    assert set(TEMPLATES) == {
        *("single_node", "multi_node", "spares", "elastic", "preemptible"),
        *("chain", "array", "apptainer", "pyxis", "cpu_smoke"),
    }


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_template_has_the_lines_that_a_user_may_need(name: str) -> None:
    text = TEMPLATES[name]
    assert re.search(r"^# source \S+/bin/activate .*<-- 2", text, re.M)
    assert re.search(r"^  # --hang-timeout \d+ ", text, re.M)
    assert re.search(r"^#SBATCH --nodes=\d+ +# <-- 1", text, re.M) and "<-- 3" in text
    assert ("gpus-per-node" in directives(text)) == bool(re.search(r"^##SBATCH --cpus-per-task", text, re.M))
    assert directives(text)["ntasks-per-node"] == "1"
    if int(directives(text)["nodes"].split()[0]) > 1 and name != "cpu_smoke":
        assert "--nnodes" in text and "no-kill" in directives(text)


@pytest.mark.parametrize("name", TEMPLATES)
def test_hostile_arguments_reach_the_program_as_they_are(name: str, tmp_path: Path) -> None:
    (tmp_path / "ftsrun").write_text(SHOW)
    (tmp_path / "ftsrun").chmod(0o755)
    text = filled(TEMPLATES[name], name, {"nodes": "1" if name == "single_node" else "4"}, HOSTILE, {})
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NAME": "chain", "SLURM_ARRAY_TASK_ID": "3"}
    done = subprocess.run(["bash", "-c", text], env=environment, cwd=tmp_path, capture_output=True, check=True)
    arguments = done.stdout.decode().split("\0")[:-1]
    assert arguments[-len(HOSTILE) :] == HOSTILE
    # All else are options of ftslurm run, each with its value.
    from ftslurm.agent.options import parse_run

    options = parse_run([*arguments[: -len(HOSTILE)], "train.py"], {})
    if name == "spares":
        assert options.placement.nnodes == (3, 3)
    if name == "elastic":
        assert options.placement.nnodes == (2, 4)
    if name == "apptainer":
        assert options.program.prefix[:3] == ("apptainer", "exec", "--nv")
        assert options.program.prefix[-1] == "train.sif"


def test_values_replace_the_templates_own_or_are_added_before_the_first_command() -> None:
    values = {"nodes": "4", "gpus-per-node": "2", "time": "12:00:00", "partition": "a100", "cpus-per-task": "16"}
    text = filled(TEMPLATES["multi_node"], "multi_node", values, (), {})
    assert values.items() <= directives(text).items()
    assert max(i for i, line in enumerate(text.splitlines()) if line[:7] == "#SBATCH") < text.splitlines().index(
        "options=("
    )


@pytest.mark.parametrize("time", ["90", "90:00", "12:00:00", "2-0", "2-12:30", "2-12:00:00", "UNLIMITED"])
def test_each_form_of_a_time_that_sbatch_reads_is_taken(time: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["elastic", "--time", time, "--gpus-per-node", "h100:8"]) == 0
    out = capsys.readouterr().out
    assert f"#SBATCH --time={time}\n" in out and "#SBATCH --gpus-per-node=h100:8\n" in out


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_script_for_a_cluster_without_gpus_speaks_of_none(name: str) -> None:
    text = filled(TEMPLATES[name], name, {"gpus-per-node": "0"}, (), {})
    assert "--gpus" not in text and "without GPUs: this line" not in text


def test_a_cluster_without_gpus_needs_no_line_for_them() -> None:
    text = filled(TEMPLATES["apptainer"], "apptainer", {"gpus-per-node": "0"}, (), {})
    assert "gpus-per-node" not in directives(text)
    assert "apptainer exec --bind" in text


def test_the_users_environment_is_activated() -> None:
    def lines(**environment: str) -> list[str]:
        return filled(TEMPLATES["single_node"], "single_node", {}, (), environment).splitlines()

    assert "source '/my venv/bin/activate'" in lines(VIRTUAL_ENV="/my venv")
    assert "source /opt/conda/bin/activate /envs/x" in lines(CONDA_PREFIX="/envs/x", CONDA_EXE="/opt/conda/bin/conda")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nothing",), "expected one of apptainer, array, "),
        (("spares", "--nodes", "1"), "needs at least two"),
        (("single_node", "--nodes", "4"), "the template single_node is for one node; take multi_node"),
        (("elastic", "--job-name", "a b"), "expected a value of sbatch without spaces and quotes, found 'a b'"),
        (("elastic", "--gpus-per-node", "h100:0"), "expected a number of GPUs, such as 8 or h100:8, or 0 for"),
        (("elastic", "--nodes=0"), "expected a number of nodes"),
        (("elastic", "--nodes"), "expected a number of nodes"),
        (("elastic", "--nodes", "-1"), "expected a number of nodes from 1 on, found '-1'"),
        (
            ("elastic", "--gpus-per-node", "-1"),
            "expected a number of GPUs, such as 8 or h100:8, or 0 for a cluster without, found '-1'",
        ),
        (("elastic", "--gpus-per-node", "many"), "expected a number of GPUs"),
        (("elastic", "--cpus-per-task=0"), "expected a number of cores from 1 on"),
        (("elastic", "--time", "0"), "expected a time such as 12:00:00"),
        (("elastic", "--time", "00:00:00"), "expected a time such as 12:00:00"),
        (("elastic", "--time", "12h"), "expected a time such as 12:00:00"),
        (("array", "--array", "all"), "expected indexes"),
        (("elastic", "--partition", "--qos"), "expected a value of sbatch"),
        (("elastic", "--time", "1:00\n#SBATCH --x"), "expected a time"),
        (("elastic", "--mem", "1"), "unknown option --mem"),
        (("elastic", "train.py"), "unknown option train.py"),
        (("elastic", "--"), "expected a program"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and text in err


def test_a_name_may_be_written_with_dashes_and_the_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["multi-node"]) == 0
    assert capsys.readouterr().out == TEMPLATES["multi_node"]
    assert main([]) == 0
    assert "spares" in capsys.readouterr().out


def test_a_wrong_value_for_this_template_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        filled(TEMPLATES["spares"], "spares", {"nodes": "x"}, (), {})
