"""Stand-ins for tests of code that uses ftslurm, free to be used by anybody's tests.

| module | stands in for |
|---|---|
| `ftslurm.testing.runs` | a run: `RunBuilder` tells its history and writes its directory |
| `ftslurm.testing.clock` | the clock |
| `ftslurm.testing.memoryfs` | the shared filesystem, with faults between any two calls |
| `ftslurm.testing.slurm` | Slurm's commands |
| `ftslurm.testing.faulty_mount` | a file server that fails on command: a real mount, by FUSE |

None of them starts a process, waits, or needs a cluster, but for the last one, a process of its own.
"""
