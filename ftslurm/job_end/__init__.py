"""The job end: detect the end of the run, print the report, and end a job that Slurm would keep running."""
