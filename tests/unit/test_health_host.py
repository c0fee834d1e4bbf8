"""What is wrong with a host, and what only looks so: memory, limits, processes, clock, CPU frequency."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from ftslurm.health import slurm_steps
from ftslurm.health.check import Absent, Context
from ftslurm.health.checks import host_clock, host_frequency, host_limits, host_memory, host_processes
from ftslurm.health.procfs import above, below, processes
from ftslurm.health.verdict import Json, Judgement, describe, worst
from ftslurm.records.health import FAIL, OK, WARN
from tests.unit.health_trees import Tree

GIB, MIB = 1 << 30, 1 << 20
NODE = Context("n1")
IN_JOB = Context("n1", environ={"SLURM_JOB_ID": "123", "SLURM_STEP_ID": "0"}, own_pid=10)
BUSY = Context("n1", environ=IN_JOB.environ, busy=True, own_pid=10)

MEMORY: Json = {
    "total": 1024 * GIB,
    "available": 1000 * GIB,
    "shared": GIB,
    "huge": 0,
    "huge_free": 0,
    "swap": 0,
    "swap_used": 0,
    "swapped_in": 0,
    "stalled": 0.0,
    "job": None,
    "boot": "a",
    "at_s": 1000.0,
}
NONE: dict[str, None] = dict.fromkeys(("core", "processes", "space", "cpu", "file_size", "stack", "locked"))
LIMITS: Json = {
    "soft": {**NONE, "files": 1024},
    "hard": {**NONE, "files": 524288},
    "capabilities": 0,
    "rdma": {},
    "gpus": False,
    "own_threads": 100,
    "threads": 2000,
    "pid_max": 4194304,
    "open": [5000, 1000000],
    "pids": None,
    "core_pattern": "core",
}
PROCESSES: Json = {
    "processes": 300,
    "others": [],
    "steps": ["123.0", "123.batch"],
    "slurmd": True,
    "hanging": [],
    "zombies": 0,
    "parents": {"pid": 0, "name": "", "count": 0},
    "load": [1.0, 1.0],
    "cpus": 128,
    "boot": "a",
    "at_s": 5000.0,
}
LEFT: Json = {
    "pid": 4242,
    "name": "python",
    "age_s": 7300.0,
    "memory": 3 * GIB,
    "job": "122",
    "step": "0",
    "restarts": 0,
    "run": None,
    "rank": None,
    "agent": False,
}
HANGING: Json = {
    "pid": 77,
    "thread": 77,
    "started": 9,
    "ran": 5,
    "name": "python",
    "mine": True,
    "ended": False,
    "where": "nfs_wait_bit_killable",
    "held_s": 2.0,
}
CLOCK: Json = {
    "now_s": 1.8e9,
    "boot_s": 5000.0,
    "boot": "a",
    "daemons": ["chronyd"],
    "timesync": False,
    "kernel": {"synchronised": True, "estimated_s": 1e-4, "largest_s": 0.02},
    "source": "tsc",
    "virtual": False,
}
UNSYNCHRONISED = {"synchronised": False, "estimated_s": 16.0, "largest_s": 16.0}
POLICY: Json = {
    "scaling_driver": "intel_pstate",
    "scaling_governor": "powersave",
    "scaling_max_freq": 3700000,
    "cpuinfo_max_freq": 3700000,
    "bios_limit": None,
    "cpus": 128,
    "first": "policy0",
}
FREQUENCY: Json = {
    "policies": [POLICY],
    "highest_pct": 100,
    "throttled": 3,
    "throttled_ms": 400,
    "boot": "a",
    "off": [],
}
HEALTHY = {
    host_memory: MEMORY,
    host_limits: LIMITS,
    host_processes: PROCESSES,
    host_clock: CLOCK,
    host_frequency: FREQUENCY,
}


def changed(facts: Json, *changes: Json, **more: Any) -> Json:
    found = copy.deepcopy(facts)
    for change in (*changes, more):
        for name, value in change.items():
            found[name] = {**found[name], **value} if isinstance(value, dict) and found[name] else value
    return found


def fault(
    name: str, module: Any, status: str, expected: str, *, context: Context = NODE, before: Any = None, **more: Any
):
    facts = changed(HEALTHY[module], more)
    then = None if before is None else changed(HEALTHY[module], before)
    return pytest.param(module, facts, then, context, status, expected, id=name)


IB = {"mlx5_0": "InfiniBand"}
ROCE = {"mlx5_0": "Ethernet"}
LARGE_JOB = Context("n1", environ={"SLURM_JOB_NUM_NODES": "256", "SLURM_GPUS_ON_NODE": "8"})
GIVEN = Context("n1", environ={"SLURM_MEM_PER_NODE": str(900 * 1024)})
PER_CPU = Context("n1", environ={"SLURM_MEM_PER_CPU": "7168", "SLURM_CPUS_ON_NODE": "128"})
REQUEUED = Context("n1", environ={"SLURM_JOB_ID": "123", "SLURM_RESTART_COUNT": "2"}, own_pid=10)

FAULTS = [
    fault(
        "memory-gone",
        host_memory,
        FAIL,
        "memory: only 512 MiB of 1 TiB are available, taken are 900 GiB shared memory (/dev/shm and other tmpfs)",
        available=512 * MIB,
        shared=900 * GIB,
    ),
    fault("memory-little", host_memory, WARN, "memory: only 12 GiB of 1 TiB are available", available=12 * GIB),
    fault(
        "memory-promised-by-cgroup",
        host_memory,
        WARN,
        "memory: the job may use 500 GiB more, but only 300 GiB are available, taken are 200 GiB shared memory"
        " (/dev/shm and other tmpfs) and 256 GiB huge pages",
        available=300 * GIB,
        job={"limit": 501 * GIB, "used": GIB},
        shared=200 * GIB,
        huge=256 * GIB,
    ),
    fault(
        "memory-promised-by-slurm",
        host_memory,
        WARN,
        "the job may use 900 GiB more, but only 300 GiB are available",
        context=GIVEN,
        available=300 * GIB,
    ),
    fault(
        "memory-promised-per-cpu",
        host_memory,
        WARN,
        "the job may use 896 GiB more, but only 300 GiB are available",
        context=PER_CPU,
        available=300 * GIB,
    ),
    fault(
        "memory-used-before-the-round",
        host_memory,
        WARN,
        "the job's memory: before the round the job's processes and"
        " files in memory already take 200 GiB of its limit of 500 GiB",
        context=IN_JOB,
        job={"limit": 500 * GIB, "used": 200 * GIB},
    ),
    fault(
        "huge-pages",
        host_memory,
        WARN,
        "memory: 600 GiB of 1 TiB are reserved as unused huge pages",
        huge=600 * GIB,
        huge_free=600 * GIB,
    ),
    fault(
        "swapping",
        host_memory,
        WARN,
        "swap: 6 GiB were read back from swap in 10 min, 10.2 MiB a second",
        context=BUSY,
        before={"at_s": 400.0},
        swapped_in=6 * GIB,
    ),
    fault(
        "memory-stalled",
        host_memory,
        WARN,
        "memory: all processes waited for memory 23 % of the last minute",
        context=BUSY,
        stalled=23.4,
    ),
    fault(
        "files-few",
        host_limits,
        WARN,
        "open files: a process may open 256 files, expected at least 1024",
        soft={"files": 256},
    ),
    fault(
        "files-few-for-many-ranks",
        host_limits,
        WARN,
        "open files: a process may open 1024 files, expected at least 4608 for 2048 ranks: each connects with each",
        context=LARGE_JOB,
    ),
    fault(
        "files-of-the-node",
        host_limits,
        WARN,
        "open files: 950000 of the node's 1000000 file handles are in use",
        open=[950000, 1000000],
    ),
    fault(
        "memlock-infiniband",
        host_limits,
        FAIL,
        "locked memory: 64 KiB may be locked, expected unlimited: InfiniBand needs its buffers locked",
        soft={"locked": 65536},
        rdma=IB,
    ),
    fault("memlock-roce", host_limits, WARN, "locked memory: 8 MiB may be locked", soft={"locked": 8 * MIB}, rdma=ROCE),
    fault(
        "threads-of-the-user",
        host_limits,
        WARN,
        "processes: this user has 3900 threads here, and may have 4096",
        soft={"processes": 4096},
        own_threads=3900,
    ),
    fault(
        "threads-of-the-cgroup",
        host_limits,
        WARN,
        "processes: the job has 990 threads in its cgroup, and may have 1000",
        pids=[990, 1000],
    ),
    fault(
        "threads-of-the-node",
        host_limits,
        WARN,
        "processes: 30000 threads on the node, and there can be 32768",
        threads=30000,
        pid_max=32768,
    ),
    fault(
        "address-space",
        host_limits,
        WARN,
        "address space: a process may have 64 GiB of addresses: GPUs' drivers need",
        soft={"space": 64 * GIB},
        gpus=True,
    ),
    fault("cpu-time", host_limits, WARN, "CPU time: a process is killed after 3600 s", soft={"cpu": 3600}),
    fault("file-size", host_limits, WARN, "file size: a file may have 2 GiB", soft={"file_size": 2 * GIB}),
    fault("stack", host_limits, WARN, "stack: a stack may have 256 KiB, 8 MiB are usual", soft={"stack": 1 << 18}),
    fault(
        "leftover-of-another-job",
        host_processes,
        WARN,
        "process 4242 (python): left over from job 122, which is over on this node; 2 h 1 min old, 3 GiB",
        context=IN_JOB,
        others=[LEFT],
    ),
    fault(
        "leftover-of-an-earlier-step",
        host_processes,
        WARN,
        "left over from step 123.7, which is over",
        context=IN_JOB,
        others=[{**LEFT, "job": "123", "step": "7"}],
    ),
    fault(
        "leftover-from-before-the-requeue",
        host_processes,
        WARN,
        "left over from this job, from before it was requeued (start 2 of 3), rank 5",
        context=REQUEUED,
        others=[{**LEFT, "job": "123", "restarts": 1, "rank": "5"}],
    ),
    fault(
        "leftover-of-a-run-without-agent",
        host_processes,
        WARN,
        "left over from the run local-1, whose agent is gone, rank 3; 2 h 1 min old",
        others=[{**LEFT, "job": None, "step": None, "run": "local-1", "rank": "3"}],
    ),
    fault(
        "leftover-seen-by-slurms-health-check",
        host_processes,
        WARN,
        "left over from job 122",
        others=[{**LEFT, "step": None}],
    ),
    fault(
        "leftovers-many",
        host_processes,
        WARN,
        "processes: 2 more processes are left over: 105 106",
        context=IN_JOB,
        others=[{**LEFT, "pid": 100 + n} for n in range(7)],
    ),
    fault(
        "hangs-in-the-kernel",
        host_processes,
        WARN,
        "process 77 (python): hangs in the kernel in nfs_wait_bit_killable (state D), for 2 s at least",
        context=IN_JOB,
        hanging=[HANGING],
    ),
    fault(
        "killed-and-cannot-end",
        host_processes,
        WARN,
        "process 77 (python): has been killed and cannot end: a thread of"
        " it hangs in the kernel in uvm_ioctl (state D), for 1 min at least",
        context=BUSY,
        before={"hanging": [HANGING], "at_s": 4940.0},
        hanging=[{**HANGING, "ended": True, "where": "uvm_ioctl", "held_s": 0.5}],
    ),
    fault(
        "hangs-for-another-job",
        host_processes,
        WARN,
        "hangs in the kernel",
        before={"hanging": [HANGING], "at_s": 1.0},
        hanging=[{**HANGING, "mine": False}],
    ),
    fault(
        "zombies",
        host_processes,
        WARN,
        "zombies: 900 processes have ended and are not collected, 880 of them by process 50 (dockerd)",
        zombies=900,
        parents={"pid": 50, "name": "dockerd", "count": 880},
    ),
    fault(
        "load",
        host_processes,
        WARN,
        "load: 2100, and 1900 over 5 minutes, on 128 CPUs before the round",
        load=[2100.0, 1900.0],
    ),
    fault("clock-1970", host_clock, FAIL, "clock: its date is 1970-01-01 01:23", now_s=5000.0),
    fault(
        "clock-off",
        host_clock,
        WARN,
        "clock: it is off by 400 ms by the kernel's estimate, expected less than 100 ms",
        kernel={"estimated_s": 0.4},
    ),
    fault(
        "clock-ntpd-not-synchronised",
        host_clock,
        WARN,
        "clock: ntpd runs, but the clock is not synchronised",
        kernel=UNSYNCHRONISED,
        daemons=["ntpd"],
    ),
    fault(
        "clock-timesyncd-never-reached",
        host_clock,
        WARN,
        "clock: systemd-timesyncd runs, but the clock is not synchr",
        kernel=UNSYNCHRONISED,
        daemons=["systemd-timesyncd"],
    ),
    fault(
        "clock-set",
        host_clock,
        WARN,
        "clock: it was set back by 42 s in the last 1 min",
        context=BUSY,
        before={"now_s": 1.8e9 - 18.0, "boot_s": 4940.0},
    ),
    fault("clock-source", host_clock, WARN, "clock source: time is read from hpet, expected tsc", source="hpet"),
    fault(
        "governor",
        host_frequency,
        WARN,
        "128 CPUs from policy0 on: the governor powersave with acpi-cpufreq holds them at their lowest frequency",
        policies=[{**POLICY, "scaling_driver": "acpi-cpufreq"}],
    ),
    fault(
        "frequency-capped",
        host_frequency,
        WARN,
        "a setting allows 2.0 GHz, they could run at 3.7 GHz",
        policies=[{**POLICY, "scaling_max_freq": 2000000}],
    ),
    fault(
        "frequency-capped-by-firmware",
        host_frequency,
        WARN,
        "the firmware allows 1.2 GHz, they could run at 3.7 GHz",
        policies=[{**POLICY, "bios_limit": 1200000}],
    ),
    fault("performance-capped", host_frequency, WARN, "CPUs: intel_pstate allows 50 % of", highest_pct=50),
    fault(
        "cpus-throttled",
        host_frequency,
        WARN,
        "CPUs: they were throttled for heat 40 times since the last check, 12 s in all",
        before={},
        throttled=43,
        throttled_ms=12400,
    ),
    fault(
        "cpus-off", host_frequency, WARN, "CPUs: 2 CPUs of the node are switched off, the first is CPU 6", off=[6, 7]
    ),
]


@pytest.mark.parametrize(("module", "facts", "before", "context", "status", "expected"), FAULTS)
def test_faults_are_found(
    module: Any, facts: Json, before: Json | None, context: Context, status: str, expected: str
) -> None:
    judgement: Judgement = module.CHECK.judge(facts, before, context)
    texts = [describe(finding) for finding in judgement.findings]
    assert any(expected in one for one in texts), texts
    assert worst(finding.status for finding in judgement.findings) == status
    for finding in judgement.findings:
        assert "\n" not in finding.text and not finding.text.endswith(".") and finding.advice.endswith(".")


def harmless(name: str, module: Any, context: Context = NODE, before: Json | None = None, **more: Any):
    then = None if before is None else changed(HEALTHY[module], before)
    return pytest.param(module, changed(HEALTHY[module], more), then, context, id=name)


@pytest.mark.parametrize(
    ("module", "facts", "before", "context"),
    [
        *(harmless(module.CHECK.name, module, context) for module in HEALTHY for context in (NODE, IN_JOB, BUSY)),
        harmless(
            "ranks take all memory", host_memory, BUSY, available=2 * GIB, job={"limit": 500 * GIB, "used": 499 * GIB}
        ),
        harmless(
            "by hand while ranks run", host_memory, job={"limit": 500 * GIB, "used": 490 * GIB}, available=80 * GIB
        ),
        harmless("swapped out long ago", host_memory, swap=64 * GIB, swap_used=40 * GIB),
        harmless("swapped in before the restart", host_memory, before={"boot": "b"}, swapped_in=900 * GIB),
        harmless("memory of a small machine", host_memory, total=GIB, available=700 * MIB),
        harmless("little to lock without InfiniBand", host_limits, soft={"locked": 65536}),
        harmless("root locks what it wants", host_limits, soft={"locked": 65536}, rdma=IB, capabilities=1 << 14),
        harmless("root's processes", host_limits, soft={"processes": 10}, capabilities=1 << 24),
        harmless("addresses without a GPU", host_limits, soft={"space": 64 * GIB}),
        harmless("my other job on the node", host_processes, IN_JOB, others=[LEFT], steps=["122.0", "123.0"]),
        harmless(
            "another step of the job",
            host_processes,
            IN_JOB,
            others=[{**LEFT, "job": "123", "step": "1"}],
            steps=["123.0", "123.1"],
        ),
        harmless("the job's batch script", host_processes, IN_JOB, others=[{**LEFT, "job": "123", "step": None}]),
        harmless("the job's own step", host_processes, IN_JOB, others=[{**LEFT, "job": "123", "step": "0"}]),
        harmless("slurm cannot be seen", host_processes, IN_JOB, others=[LEFT], steps=[], slurmd=False),
        harmless("a login node", host_processes, others=[LEFT], steps=[], slurmd=False),
        harmless("a rank with its agent", host_processes, others=[{**LEFT, "job": None, "run": "r", "agent": True}]),
        harmless(
            "a rank of another job's run",
            host_processes,
            IN_JOB,
            steps=["123.0", "122.0"],
            others=[{**LEFT, "run": "r"}],
        ),
        harmless("a short sleep", host_processes, IN_JOB, hanging=[{**HANGING, "held_s": 0.5}]),
        harmless("another job's sleep", host_processes, hanging=[{**HANGING, "mine": False}]),
        harmless(
            "another sleep of the same process",
            host_processes,
            BUSY,
            before={"hanging": [HANGING], "at_s": 1.0},
            hanging=[{**HANGING, "ran": 6, "held_s": 0.5}],
        ),
        harmless("load while ranks run", host_processes, BUSY, load=[3000.0, 3000.0]),
        harmless("load for a moment", host_processes, load=[3000.0, 30.0]),
        harmless("no daemon keeps time", host_clock, kernel=UNSYNCHRONISED, daemons=[]),
        harmless("chronyd without rtcsync", host_clock, kernel=UNSYNCHRONISED),
        harmless("just started", host_clock, kernel=UNSYNCHRONISED, daemons=["ntpd"], boot_s=60.0),
        harmless(
            "timesyncd has been in step",
            host_clock,
            kernel=UNSYNCHRONISED,
            daemons=["systemd-timesyncd"],
            timesync=True,
        ),
        harmless("adjtimex is forbidden", host_clock, kernel=None),
        harmless("the clock of another start", host_clock, before={"boot": "b", "boot_s": 1.0}),
        harmless("slewed", host_clock, before={"now_s": 1.8e9 - 60.4, "boot_s": 4940.0}),
        harmless("a virtual machine's clock", host_clock, source="acpi_pm", virtual=True),
        harmless("amd-pstate", host_frequency, policies=[{**POLICY, "scaling_driver": "amd-pstate-epp"}]),
        harmless("no frequencies", host_frequency, policies=[], highest_pct=None),
        harmless("throttled long ago", host_frequency, throttled=90, throttled_ms=90000),
        harmless(
            "throttled before the restart", host_frequency, before={"boot": "b"}, throttled=90, throttled_ms=90000
        ),
    ],
)
def test_normal_conditions_are_not_found(module: Any, facts: Json, before: Json | None, context: Context) -> None:
    judgement: Judgement = module.CHECK.judge(facts, before, context)
    assert judgement.findings == () and judgement.summary


def test_summaries_give_the_figures() -> None:
    def summary(module: Any, context: Context = NODE) -> str:
        return str(module.CHECK.judge(HEALTHY[module], None, context).summary)

    assert summary(host_memory) == "1000 GiB of 1 TiB available"
    assert summary(host_memory, GIVEN) == "1000 GiB of 1 TiB available, the job may use 900 GiB"
    assert (
        summary(host_limits)
        == "1024 open files, any number of processes, locked memory unlimited, core files of any size"
    )
    assert summary(host_processes) == "300 processes, load 1.0, no leftovers"
    assert summary(host_clock) == "synchronised, estimated error 0.1 ms"
    assert summary(host_frequency) == "intel_pstate powersave"


# Fetches, over trees that look like a node's /proc and /sys


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.boot("a")
    return tree


def test_memory_is_read_in_bytes_with_the_jobs_smallest_limit(tree: Tree) -> None:
    tree.file("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\nShmem: 1024 kB\nSwapTotal: 2048 kB\n"
              "SwapFree: 1024 kB\nHugePages_Total: 4\nHugePages_Free: 3\nHugepagesize: 2048 kB")  # fmt: skip
    tree.file("proc/vmstat", "pswpin 10\npswpout 20")
    tree.file(
        "proc/pressure/memory", "some avg10=1.00 avg60=2.00 avg300=0.00 total=1\nfull avg10=0.10 avg60=12.50 total=9"
    )
    tree.file("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_1/step_0/user/task_0")
    job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_1"
    tree.files(f"{job}/step_0", **{"memory.max": "max"})
    tree.files(job, **{"memory.max": 400 * MIB, "memory.stat": f"anon {20 * MIB}\nfile 7\nshmem {5 * MIB}"})
    facts = host_memory.fetch(Context("n1", root=tree.root))
    facts.pop("at_s")
    assert facts == {
        "total": GIB,
        "available": GIB // 2,
        "shared": MIB,
        "huge": 8 * MIB,
        "huge_free": 6 * MIB,
        "swap": 2 * MIB,
        "swap_used": MIB,
        "swapped_in": 40960,
        "stalled": 12.5,
        "boot": "a",
        "job": {"limit": 400 * MIB, "used": 25 * MIB},
    }


def test_the_limit_of_a_version_1_cgroup_is_read_and_its_none_is_none(tree: Tree) -> None:
    tree.file("proc/self/cgroup", "4:memory:/slurm/uid_0/job_1/step_0\n0::/")
    memory = "sys/fs/cgroup/memory"
    tree.files(f"{memory}/slurm/uid_0/job_1/step_0", **{"memory.limit_in_bytes": 9223372036854771712})
    assert host_memory.fetch(Context("n1", root=tree.root))["job"] is None
    stat = f"total_rss {3 * MIB}\ntotal_shmem {MIB}\nrss 1"
    tree.files(f"{memory}/slurm/uid_0/job_1", **{"memory.limit_in_bytes": 64 * MIB, "memory.stat": stat})
    assert host_memory.fetch(Context("n1", root=tree.root))["job"] == {"limit": 64 * MIB, "used": 4 * MIB}


def test_an_empty_proc_is_not_judged(tree: Tree) -> None:
    facts = host_memory.fetch(Context("n1", root=tree.root))
    assert host_memory.judge(facts, None, NODE) == Judgement("the kernel does not say")


def test_limits_are_this_processs_and_devices_are_found(tree: Tree) -> None:
    tree.file("proc/self/status", "Name: python\nCapEff:\t0000000000004000")
    tree.file("proc/loadavg", "0.1 0.2 0.3 2/345 999")
    tree.file("proc/sys/fs/file-nr", "100\t0\t5000")
    tree.file("proc/self/cgroup", "8:pids:/job_1\n0::/")
    tree.files("sys/fs/cgroup/pids/job_1", **{"pids.max": 1000, "pids.current": 12})
    tree.file("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand")
    tree.file("dev/nvidia0", "")
    facts = host_limits.fetch(Context("n1", root=tree.root))
    assert facts["capabilities"] == 1 << 14 and facts["rdma"] == IB and facts["gpus"]
    assert facts["threads"] == 345 and facts["open"] == [100, 5000] and facts["pids"] == [12, 1000]
    assert set(facts["soft"]) == {*NONE, "files"}


class Machine:
    """Processes in a tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        tree.file("proc/uptime", "10000.00 1.0")
        tree.file("proc/loadavg", "3.50 2.50 1.00 2/345 999")
        tree.file("sys/devices/system/cpu/online", "0-3,8-11")

    def process(
        self, pid: int, name: str = "python", parent: int = 1, state: str = "S", threads: int = 1,
        cmdline: str = "", cgroup: str = "/", switches: int = 7, **environ: str,
    ) -> None:  # fmt: skip
        at = f"proc/{pid}"
        rest = [state, parent, *[0] * 15, threads, 0, 100 * os.sysconf("SC_CLK_TCK"), *[0] * 20]
        self.tree.file(f"{at}/stat", f"{pid} ({name}) {' '.join(map(str, rest))}")
        self.tree.file(f"{at}/cmdline", cmdline.replace(" ", "\0"))
        self.tree.file(f"{at}/cgroup", f"0::{cgroup}")
        self.tree.file(f"{at}/environ", "\0".join(f"{key}={value}" for key, value in environ.items()))
        self.tree.file(f"{at}/status", f"VmRSS:\t2048 kB\n{self.switches(switches)}")
        self.thread(pid, pid, name, rest, switches)

    def thread(self, pid: int, thread: int, name: str, rest: list[Any], switches: int) -> None:
        at = f"proc/{pid}/task/{thread}"
        self.tree.file(f"{at}/stat", f"{thread} ({name}) {' '.join(map(str, rest))}")
        self.tree.file(f"{at}/status", self.switches(switches))
        self.tree.file(f"{at}/wchan", "nfs_wait_bit_killable")

    @staticmethod
    def switches(count: int) -> str:
        return f"voluntary_ctxt_switches:\t{count}\nnonvoluntary_ctxt_switches:\t0"

    def look(self, own_pid: int | None = None, sleep: Any = lambda _: None, **more: bool) -> Json:
        return host_processes.fetch(Context("n1", root=self.tree.root, own_pid=own_pid, **more), sleep)


@pytest.fixture
def machine(tree: Tree) -> Machine:
    return Machine(tree)


SLURM = {"SLURM_JOB_ID": "122", "SLURM_STEP_ID": "0"}


def test_processes_of_jobs_are_found_with_their_step_and_age(machine: Machine) -> None:
    machine.process(5000001, "slurmd")
    machine.process(5000002, "slurmstepd", cmdline="slurmstepd: [123.0]")
    machine.process(5000003, "slurmstepd", cmdline="slurmstepd: [123.batch]")
    machine.process(5000010, cgroup="/system.slice/slurmstepd.scope/job_121/step_4/user/task_0")
    machine.process(5000011, "a) (b c", **SLURM)
    machine.process(5000012, "bash", cmdline="-bash")
    machine.process(5000013, "sshd")
    facts = machine.look()
    assert facts["slurmd"] and facts["steps"] == ["123.0", "123.batch"]
    assert [(one["pid"], one["name"], one["job"], one["step"]) for one in facts["others"]] == [
        (5000010, "python", "121", "4"),
        (5000011, "a) (b c", "122", "0"),
    ]
    assert facts["others"][0]["age_s"] == pytest.approx(9900) and facts["others"][0]["memory"] == 2 * MIB
    assert facts["cpus"] == 8 and facts["load"] == [3.5, 2.5] and facts["processes"] == 7
    found = host_processes.judge(facts, None, IN_JOB).findings
    assert [finding.subject for finding in found] == ["process 5000010 (python)", "process 5000011 (a) (b c)"]


def test_what_descends_from_the_agent_is_no_leftover(machine: Machine) -> None:
    machine.process(5000010, parent=1, **SLURM)
    machine.process(5000011, parent=5000010, **SLURM)
    machine.process(5000012, parent=5000011, **SLURM)
    machine.process(5000020, parent=1, **SLURM)
    assert [one["pid"] for one in machine.look(own_pid=5000010)["others"]] == [5000020]


def test_a_rank_is_left_over_only_without_an_agent_above_it(machine: Machine) -> None:
    machine.process(5000010, cmdline="python -m ftslurm run train.py")
    machine.process(5000011, parent=5000010, FTSLURM_RECORD_DIR="/x", FTSLURM_RUN_ID="r", RANK="1")
    machine.process(5000012, parent=1, FTSLURM_RECORD_DIR="/x", FTSLURM_RUN_ID="r", RANK="2")
    found = host_processes.judge(machine.look(), None, NODE).findings
    assert [describe(finding) for finding in found] == [
        "process 5000012 (python): left over from the run r, whose agent is gone, rank 2; 2 h 45 min old, 2 MiB"
    ]


def test_special_steps_belong_to_their_job(machine: Machine) -> None:
    machine.process(5000010, SLURM_JOB_ID="5", SLURM_STEP_ID="4294967290")
    one = processes(machine.tree.root)[5000010]
    step = slurm_steps.belonging(machine.tree.root, one, {})
    assert step is not None and step["job"] == "5" and step["step"] is None


def test_a_process_that_does_not_move_between_two_runs_hangs(machine: Machine) -> None:
    pauses: list[float] = []
    machine.process(5000010, state="D")
    machine.process(5000011, state="D")

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        machine.process(5000011, state="D", switches=8)

    facts = machine.look(sleep=sleep)
    assert [(one["pid"], one["where"], one["held_s"]) for one in facts["hanging"]] == [
        (5000010, "nfs_wait_bit_killable", 2.0)
    ]
    assert pauses == list(host_processes.PAUSES_S)


def test_a_run_that_a_round_waits_for_leaves_it_to_the_next_run(machine: Machine) -> None:
    pauses: list[float] = []
    machine.process(5000010, state="D")
    before = machine.look(sleep=pauses.append, hurry=True)
    assert pauses == [host_processes.PAUSES_S[0]]
    assert host_processes.judge(before, None, NODE).findings == ()
    later = machine.look(sleep=pauses.append)
    (finding,) = host_processes.judge({**later, "at_s": before["at_s"] + 300}, before, NODE).findings
    assert "for 5 min at least" in finding.text


def test_nothing_waits_when_nothing_sleeps_without_interruption(machine: Machine) -> None:
    machine.process(5000010)
    assert machine.look(sleep=lambda _: pytest.fail("it waited"))["hanging"] == []


def test_ranks_that_write_are_not_checked_while_they_run(machine: Machine) -> None:
    machine.process(5000010)
    machine.process(5000011, parent=5000010, state="D")
    assert machine.look(own_pid=5000010, busy=True)["hanging"] == []
    assert [one["pid"] for one in machine.look(own_pid=5000010)["hanging"]] == [5000011]


def test_a_zombie_whose_thread_hangs_has_not_ended(machine: Machine) -> None:
    machine.process(5000010, state="Z", threads=2)
    machine.thread(5000010, 5000099, "python", ["D", 1, *[0] * 15, 2, 0, 5, *[0] * 20], 3)
    facts = machine.look()
    assert facts["zombies"] == 0
    assert [(one["thread"], one["ended"]) for one in facts["hanging"]] == [(5000099, True)]


def test_zombies_are_counted_by_their_parent(machine: Machine) -> None:
    machine.process(5000010, "dockerd")
    for n in range(3):
        machine.process(5000020 + n, state="Z", parent=5000010)
    facts = machine.look()
    assert facts["zombies"] == 3 and facts["parents"] == {"pid": 5000010, "name": "dockerd", "count": 3}


def test_kernel_threads_and_torn_files_are_left_out(machine: Machine) -> None:
    machine.process(2, "kthreadd", parent=0)
    machine.process(5000010, "kworker/0:1", parent=2, state="D")
    machine.tree.file("proc/5000011/stat", "5000011 (torn")
    machine.tree.file("proc/5000012/stat", "")
    assert machine.look()["processes"] == 0


def test_ancestors_and_descendants_are_found_even_in_circles(machine: Machine) -> None:
    for pid, parent in ((5000001, 1), (5000002, 5000001), (5000003, 5000002), (5000008, 5000009), (5000009, 5000008)):
        machine.process(pid, parent=parent)
    table = processes(machine.tree.root)
    assert below(table, 5000001) == {5000001, 5000002, 5000003}
    assert above(table, 5000003) == [5000002, 5000001, 1]
    assert below(table, 5000008) == {5000008, 5000009} and above(table, 5000008) == [5000009, 5000008]


@pytest.mark.parametrize(("listed", "numbers"), [("0-3,8", {0, 1, 2, 3, 8}), ("0", {0}), ("", set()), ("x-y", set())])
def test_lists_of_cpus_are_read(listed: str, numbers: set[int]) -> None:
    assert host_processes.cpu_numbers(listed) == numbers


def test_the_state_of_the_clock_is_read_from_the_kernel(tree: Tree) -> None:
    tree.file("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")
    tree.file("proc/cpuinfo", "flags : fpu hypervisor")
    tree.file("run/systemd/timesync/synchronized", "")
    Machine(tree).process(5000010, "systemd-timesyn")
    facts = host_clock.fetch(Context("n1", root=tree.root))
    assert facts["source"] == "hpet" and facts["virtual"] and facts["timesync"]
    assert facts["daemons"] == ["systemd-timesyncd"]
    assert facts["kernel"] is None or 0 <= facts["kernel"]["estimated_s"] <= facts["kernel"]["largest_s"] + 16


def test_equal_settings_of_cpus_are_one_line(tree: Tree) -> None:
    cpu = "sys/devices/system/cpu"
    for n in range(8):
        (tree.path / cpu / f"cpu{n}").mkdir(parents=True)
        driver = {"scaling_driver": "intel_cpufreq", "scaling_governor": "powersave" if n < 2 else "performance"}
        tree.files(f"{cpu}/cpufreq/policy{n}", **driver, scaling_max_freq=2000000, cpuinfo_max_freq=2000000)
        tree.files(f"{cpu}/cpu{n}/thermal_throttle", package_throttle_count=n, package_throttle_total_time_ms=10 * n)
    tree.files(cpu, present="0-9", online="0-7")
    tree.files(f"{cpu}/intel_pstate", max_perf_pct=90)
    facts = host_frequency.fetch(Context("n1", root=tree.root))
    assert [(one["cpus"], one["first"]) for one in facts["policies"]] == [(2, "policy0"), (6, "policy2")]
    assert (facts["throttled"], facts["throttled_ms"], facts["highest_pct"]) == (7, 70, 90)
    assert facts["off"] == [8, 9]
    found = [describe(finding) for finding in host_frequency.judge(facts, None, NODE).findings]
    assert found[0].startswith("2 CPUs from policy0 on: the governor powersave with intel_cpufreq holds them")
    tree.files(f"{cpu}/smt", active=0)
    assert host_frequency.fetch(Context("n1", root=tree.root))["off"] == []


def test_a_kernel_without_cpu_files_is_absent(tree: Tree) -> None:
    with pytest.raises(Absent, match="does not show its CPUs"):
        host_frequency.fetch(Context("n1", root=tree.root))


def test_statuses_of_this_group_are_ok_without_findings() -> None:
    assert worst(()) == OK
