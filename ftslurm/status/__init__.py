"""What a run does right now, told from its run directory alone: `ftslurm status`."""
