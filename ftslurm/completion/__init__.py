"""Completion of `ftslurm` and `ftsrun` in bash, zsh and fish, generated from the tables and parsers of the options."""
