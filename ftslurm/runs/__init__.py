"""Commands on all runs of a directory: `ftslurm list`, `history`, `clean`; and `ftslurm restart`."""
