"""The files of a run directory: for each a frozen data class and, by its annotations, one codec."""
