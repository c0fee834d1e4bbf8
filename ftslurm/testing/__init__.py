"""Stand-ins for tests of code that uses ftslurm: clock, filesystem faults, Slurm."""
