"""From a run directory to the first-failure report."""
