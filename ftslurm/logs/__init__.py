"""`ftslurm logs`: a rank's output, and where it is."""
