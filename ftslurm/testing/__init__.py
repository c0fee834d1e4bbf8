"""Test doubles for code that uses ftslurm; a public module.

| module | replaces |
|---|---|
| `ftslurm.testing.clock` | the clock |
| `ftslurm.testing.memoryfs` | the shared filesystem, with faults between any two calls |

None of them starts a process, waits, or needs a cluster.
"""
