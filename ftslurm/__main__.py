"""`python -m ftslurm`: the command `ftslurm`, where it is not on PATH."""

from ftslurm.cli import console

if __name__ == "__main__":
    console()
