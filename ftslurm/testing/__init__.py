"""Stand-ins for tests of code that uses ftslurm, free to be used by anybody's tests.

| module | stands in for |
|---|---|
| `ftslurm.testing.runs` | a run: `RunBuilder` tells its history and writes its directory |
| `ftslurm.testing.clock` | the clock |
| `ftslurm.testing.memoryfs` | the shared filesystem, with faults between any two calls |
| `ftslurm.testing.slurm` | Slurm's commands |

None of them starts a process, waits, or needs a cluster.
"""
