"""Test doubles for code that uses ftslurm; a public module.

| module | replaces |
|---|---|
| `ftslurm.testing.runs` | a run: `RunBuilder` builds its history and writes its directory |
| `ftslurm.testing.clock` | the clock |
| `ftslurm.testing.memoryfs` | the shared filesystem, with faults between any two calls |
| `ftslurm.testing.slurm` | Slurm's commands |
| `ftslurm.testing.faulty_mount` | a file server with injected faults: a real mount, by FUSE |

None of them starts a process, waits, or needs a cluster, except the last one, which is a process of its own.
"""
