"""What `ftslurm.record` writes, in processes that `ftslurm.worker` did not start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from worker_process import OURS, environment

from ftslurm.failures.record import complete
from ftslurm.records.error import ErrorRecord


def run(tmp_path: Path, source: str, **extra: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(source)
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def under_agent(tmp_path: Path) -> dict[str, str]:
    records = tmp_path / "records"
    records.mkdir(mode=0o700)
    return {**OURS, "FTSLURM_RECORD_DIR": str(records), "TORCHELASTIC_ERROR_FILE": str(records / "error.json")}


def recorded(tmp_path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((tmp_path / "records" / "error.json").read_text())
    return record


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_exception_of_a_multiprocessing_child_is_recorded_in_the_ranks_name(tmp_path: Path, method: str) -> None:
    process = run(
        tmp_path,
        "import multiprocessing, sys, ftslurm\n"
        "@ftslurm.record\n"
        "def load(n):\n"
        "    raise ValueError(f'bad shard {n}')\n"
        "if __name__ == '__main__':\n"
        f"    child = multiprocessing.get_context({method!r}).Process(target=load, args=(7,))\n"
        "    child.start(); child.join(); sys.exit(child.exitcode)\n",
        **under_agent(tmp_path),
    )
    assert process.returncode == 1
    observed = ErrorRecord("exit", 9, rank=5, round=3, node="n1", local_rank=1, exit_code=1)
    record = complete(tmp_path / "records", observed)
    assert record is not None
    assert record.message == "ValueError: bad shard 7"
    assert record.exception is not None
    assert [(frame.function, frame.line) for frame in record.exception.frames] == [("load", 4)]
    assert record.rank == 5


def test_the_exception_of_a_thread_is_recorded_and_raised_again(tmp_path: Path) -> None:
    process = run(
        tmp_path,
        "import ftslurm\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "@ftslurm.record\ndef work():\n    1 / 0\n"
        "try:\n    ThreadPoolExecutor().submit(work).result()\nexcept ZeroDivisionError:\n    print('seen')\n",
        **under_agent(tmp_path),
    )
    assert (process.returncode, process.stdout) == (0, "seen\n")
    assert recorded(tmp_path)["message"]["message"] == "ZeroDivisionError: division by zero"


def test_a_coroutine_is_recorded_when_it_fails_and_not_when_it_is_cancelled(tmp_path: Path) -> None:
    source = (
        "import asyncio, ftslurm\n"
        "@ftslurm.record\nasync def wait():\n    await asyncio.sleep(9)\n"
        "@ftslurm.record\nasync def fail():\n    raise OSError(28, 'No space left on device')\n"
        "async def main():\n    task = asyncio.create_task(wait())\n    await asyncio.sleep(0)\n    task.cancel()\n"
        "    await asyncio.gather(task, return_exceptions=True)\n    import os\n"
        "    print(os.listdir(os.environ['FTSLURM_RECORD_DIR']))\n    await fail()\n"
        "asyncio.run(main())\n"
    )
    process = run(tmp_path, source, **under_agent(tmp_path))
    assert (process.returncode, process.stdout) == (1, "[]\n")
    assert recorded(tmp_path)["message"]["message"] == "OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize("end", ["sys.exit(0)", "sys.exit()", "return 5"])
def test_a_good_end_leaves_no_record(tmp_path: Path, end: str) -> None:
    source = f"import sys, ftslurm\n@ftslurm.record\ndef main():\n    {end}\nmain()\n"
    assert run(tmp_path, source, **under_agent(tmp_path)).returncode == 0
    assert not os.listdir(tmp_path / "records")


def test_outside_an_agent_it_does_nothing_but_pass_the_exception_on(tmp_path: Path) -> None:
    source = "import ftslurm\n@ftslurm.record\ndef main():\n    'Hi.'\n    raise OSError\nprint(main.__doc__)\nmain()\n"
    process = run(tmp_path, source)
    assert (process.returncode, process.stdout) == (1, "Hi.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_under_torchrun_the_record_goes_where_torchrun_reads_it(tmp_path: Path) -> None:
    source = "import ftslurm\n@ftslurm.record\ndef main():\n    raise ValueError('boom')\nmain()\n"
    (tmp_path / "records").mkdir()
    run(tmp_path, source, RANK="3", TORCHELASTIC_ERROR_FILE=str(tmp_path / "records" / "error.json"))
    record = recorded(tmp_path)
    assert (record["message"]["message"], record["ftslurm"]["rank"]) == ("ValueError: boom", 3)
    assert int(record["message"]["extraInfo"]["timestamp"]) > 1_700_000_000


def test_the_decorator_can_be_imported_by_its_name(tmp_path: Path) -> None:
    source = "from ftslurm import record\n@record\ndef main():\n    print('ran')\nmain()\n"
    assert run(tmp_path, source).stdout == "ran\n"
