"""Which CPUs are near each GPU (`--numa-binding`)."""
