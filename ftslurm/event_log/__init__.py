"""The event log of a run: what its coordinators decided and why, over all attempts (`ftslurm history --events`)."""
