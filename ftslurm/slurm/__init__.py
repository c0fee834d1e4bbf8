"""What Slurm knows and does: environment, node lists, scontrol and sacct."""
