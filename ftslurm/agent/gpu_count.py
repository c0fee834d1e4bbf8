"""Prints the number of NVIDIA GPUs that NVML counts, or "none: " and why; a program, see `ftslurm.agent.devices`."""

from __future__ import annotations

if __name__ == "__main__":
    try:
        import pynvml

        pynvml.nvmlInit()
        print(pynvml.nvmlDeviceGetCount())
    except Exception as error:
        print(f"none: {error}")
