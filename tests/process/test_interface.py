"""`--interface` and `--port-range`: the round's master is where the user chose, or one line has the reason why not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import test_run
from test_run import Start, Started

start = test_run.start

MASTER = "import os; print('master', os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'], flush=True)"
OWN_NETWORK = """\
ip link set lo up &&
ip link add ib0 type veth peer name ib1 && ip address add 10.9.0.1/16 dev ib0 && ip link set ib0 up &&
exec "$@"
"""


def test_the_master_has_a_port_of_the_range_in_each_round(start: Start) -> None:
    # Two rounds, each ended by a failure of its own: the same one twice at start would end the run.
    script = MASTER + "\nimport sys; sys.exit({'1': 11, '2': 12}.get(os.environ['FTSLURM_ROUND'], 0))"
    run = start(script, "--local-nodes", "2", "--interface", "127.0.0.0/8", "--port-range", "21000-21007")
    assert run.wait() == 0, run.err
    ports = [int(line.split()[-1]) for line in run.out.splitlines() if line.startswith("[rank 0] master 127.0.0.1")]
    assert len(ports) == 3 and all(21000 <= port <= 21007 for port in ports)
    for path in (run.run_dir / "nodes").glob("*.json"):
        assert 21000 <= json.loads(path.read_text())["doorbell_port"] <= 21007


def test_a_range_without_a_free_port_is_a_line_and_another_port(start: Start) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        number = other.getsockname()[1]
        run = start(MASTER, "--port-range", f"{number}-{number}")
        assert run.wait() == 0, run.err
    assert f"--port-range: no port of {number}-{number} is free on this node" in run.err


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_the_interface_of_a_network_namespace_is_the_address_of_its_node(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MASTER)
    inside = ("unshare", "--net", "sh", "-c", OWN_NETWORK, "sh")
    run = Started(tmp_path, "--interface", "ib0", "train.py", before=inside)
    assert run.wait() == 0, run.err
    assert "master 10.9.0.1 " in run.out


def test_a_node_without_the_interface_takes_no_part_and_its_finding_names_the_reason(start: Start) -> None:
    run = start(MASTER, "--interface", "ib77", "--join-timeout", "2")
    assert run.wait() == 1
    assert "unhealthy: --interface ib77: no such interface" in run.out + run.err
    assert "master" not in run.out


def test_without_health_checks_it_is_one_line_and_nothing_starts(start: Start) -> None:
    run = start(MASTER, "--interface", "ib77", "--health", "off")
    assert run.wait() == 2
    assert run.err.count("\n") == 1 and "--interface ib77: no such interface" in run.err
