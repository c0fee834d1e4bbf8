"""The checks, one small file each: a fetch that touches the node, and a pure judge."""
