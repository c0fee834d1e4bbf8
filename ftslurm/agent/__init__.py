"""One process per node: starts, watches and stops the workers."""
