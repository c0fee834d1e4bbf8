"""Nodes that are excluded: in files that people can read and edit, and that jobs can be submitted around."""
