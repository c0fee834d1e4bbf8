"""Modules of scripts/chaos.

| module | content | side effects |
|---|---|---|
| `counting` | the correct numbers of the counting job | |
| `count` | the counting job: what the ranks run | sockets, files |
| `links` | all-reduce between ranks: plain sockets, or torch's gloo | sockets |
| `history` | the recorded facts of one job | |
| `faults` | the registry of faults: injection, removal and permitted consequences | through `world` |
| `schedule` | the faults of each job of a seed, with their times | |
| `judge` | broken promises, from a job's history | |
| `reasons` | whether a round that ended is explained by a fault | |
| `table` | the printed lines | |
| `processes` | roles of the processes of the nodes | reads /proc |
| `shared` | the shared directory with injected faults | a FUSE mount |
| `world` | the lab: its nodes, its Slurm, its shared directory | processes |
| `strikes` | the faults of a job: injection into a target at their time, and removal | through `world` |
| `run_job` | one job: submission, faults, observation until its end | through `world` |
| `collect` | a job's history, from its files and from Slurm | reads |
| `command` | options, sequence of jobs, files kept of a miss | through `world` |
"""
