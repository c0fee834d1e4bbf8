"""The current status of a run, from its run directory and Slurm: `ftslurm status`."""
