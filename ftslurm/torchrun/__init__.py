"""The rendezvous of `ftslurm run` for stock torchrun, `--rdzv-backend=sharedfs`; nothing else imports torch."""
