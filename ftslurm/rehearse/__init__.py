"""``ftslurm rehearse``: run the user's own script, let something happen to it at a step, and judge what came of it.

`plan` reads the command line, `rehearsal` runs and injects, `evidence` reads the records of the run directory, and
`verdict` judges them.
"""
