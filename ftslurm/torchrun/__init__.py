"""The rendezvous of `ftslurm run` for stock torchrun, `--rdzv-backend=sharedfs`; only this package imports torch."""
