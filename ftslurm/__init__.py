"""Fault-tolerant multi-node PyTorch on Slurm: keeps the job alive and explains the failure."""

from __future__ import annotations

__version__ = "0.1.0"
