"""Interface to Slurm: environment, node lists, scontrol and sacct."""
