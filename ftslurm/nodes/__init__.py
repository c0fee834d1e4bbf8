"""Nodes that are set aside: in files that people can read and edit, and that jobs can be submitted around."""
