"""`ftslurm doctor`: prove that a directory can carry a run, on every node at once."""
