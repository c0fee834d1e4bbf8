"""Ends of which no more is known."""

from __future__ import annotations

import re

from ftslurm.failures.catalogue.cause import GPU, OTHER_NODE, POINTLESS, PRIMARY, Cause
from ftslurm.failures.predicates import ended, signal, tail
from ftslurm.failures.retryability import PERHAPS

_CRASHED = "Segmentation fault|Aborted|Bus error|core dumped"  # in a shell's report

ROWS: tuple[Cause, ...] = (
    Cause("sigkill", "killed by SIGKILL, sender unknown", PRIMARY, signal("SIGKILL"),
          "Look for the kernel's OOM killer (dmesg, sacct: OUT_OF_MEMORY), and for users or tools that send SIGKILL.",
          not_for="an out-of-memory kill: the OOM killer, Slurm and users all send SIGKILL", blame=PERHAPS,
          silent=True),
    Cause("segfault", "segmentation fault", PRIMARY, signal("SIGSEGV"),
          "Native code crashed: the stacks show the Python line that called it.", not_for="an abort", blame=PERHAPS,
          symptom_of=GPU),
    Cause("bus-error", "bus error", PRIMARY, signal("SIGBUS"),
          "Often a full filesystem under a mapped file, as a container's /dev/shm (--shm-size), or a file cut short.",
          not_for="a /dev/shm that was observed to be full", blame=PERHAPS, symptom_of=GPU),
    Cause("heap-corruption", "aborted: the C library found its heap corrupted", PRIMARY,
          tail("SIGABRT", r"(?m)^((free|malloc|realloc|munmap_chunk|malloc_consolidate|calloc)\(\): [a-z]"
                          r"|double free or|corrupted (size|double))"),
          "Native code wrote out of bounds, or freed a block twice: compare libraries' versions; a sanitizer finds it.",
          not_for="an exception of C++", blame=PERHAPS),
    Cause("buffer-overflow", "aborted: the C library found a buffer that had overflowed", PRIMARY,
          tail("SIGABRT", r"(?m)^\*\*\* (stack smashing|buffer overflow) detected"),
          "Native code wrote beyond a buffer, mostly on the stack: a sanitizer (ASAN) finds the line.",
          not_for="a damaged heap", blame=PERHAPS),
    Cause("abort", "aborted", PRIMARY, signal("SIGABRT"),
          "Native code aborted: its reason is in the last lines of stderr.", not_for="a segmentation fault",
          blame=PERHAPS, symptom_of=GPU, silent=True),
    Cause("illegal-instruction", "illegal instruction", PRIMARY, signal("SIGILL"),
          "A binary built for another CPU than this node's.",
          not_for="CUDA's illegal instruction", restart=OTHER_NODE, blame=PERHAPS, symptom_of=GPU),
    Cause("arithmetic-error", "arithmetic error in native code", PRIMARY, signal("SIGFPE"),
          "Mostly a whole number divided by zero: the stacks show the Python line that called it.",
          not_for="NaN or infinity, which raise no signal", blame=PERHAPS),
    Cause("cpu-limit", "CPU time limit", PRIMARY, signal("SIGXCPU"),
          "See ulimit -t of the job.", not_for="the job's time limit", restart=POINTLESS),
    Cause("terminated", "terminated by SIGTERM, not by ftslurm", PRIMARY, signal("SIGTERM"),
          "A user, another program or the rank itself sent it; Slurm does so before a time limit or a preemption.",
          not_for="a rank that ftslurm stopped", silent=True),
    Cause("signal", "ended by a signal", PRIMARY, signal(), not_for="a stop by ftslurm", symptom_of=GPU, silent=True),
    Cause("shell-killed", "ended as a shell whose command was killed by SIGKILL", PRIMARY, ended(137),
          "The sender of SIGKILL is not known. A program may also end with 137 by itself.",
          not_for="an out-of-memory kill, without a counter as evidence", silent=True),
    Cause("shell-crashed", "ended as a shell whose command crashed", PRIMARY, ended(134, 135, 139),
          "A shell reports a crash by signal as 128 + its number.", not_for="a crash of the worker itself",
          proof=lambda e: not e.tail or re.search(_CRASHED, e.tail) is not None, silent=True),
    Cause("shell-missing", "ended as a shell that could not run a command", PRIMARY, ended(126, 127),
          "A shell's report of a command that does not exist (127) or is not executable (126).",
          not_for="the worker's own program", silent=True),
    Cause("exit", "ended with an exit code", PRIMARY, lambda e: True,
          not_for="any end with more information", silent=True),
)  # fmt: skip
