"""What scripts/chaos is made of.

| module | what it holds | touches the world? |
|---|---|---|
| `counting` | what the counting job's numbers must be | |
| `count` | the counting job: what the ranks run | sockets, files |
| `links` | all-reduce between ranks: plain sockets, or torch's gloo | sockets |
| `history` | what is known of one job when it is judged | |
| `faults` | the registry of faults: how each is done and undone, and what may follow from it | through `world` |
| `schedule` | which faults each job of a seed meets, and when | |
| `judge` | what was broken, from a job's history | |
| `reasons` | whether a round that ended is explained by a fault | |
| `table` | the lines that are printed | |
| `processes` | who is who among the processes of the nodes | reads /proc |
| `shared` | the shared directory that fails on command | a FUSE mount |
| `world` | the lab: its nodes, its Slurm, its shared directory | processes |
| `strikes` | the faults of a job: when they are done, to what, and undone | through `world` |
| `run_job` | one job: submitted, hit, watched until it ends | through `world` |
| `collect` | a job's history, from its files and from Slurm | reads |
| `command` | options, one job after the other, what is kept | through `world` |
"""
