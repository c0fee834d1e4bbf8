"""The shared directory: atomic publish, bounded reads, the fenced cell."""
