"""The end of a job: who notices that the run is over, prints the report, and ends what Slurm would keep running."""
