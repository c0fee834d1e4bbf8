"""Lines of libraries and systems in logs of jobs that mean nothing for their failures, however they sound."""

# ruff: noqa: E501 - logs are as wide as they are.

from __future__ import annotations

SITE = "/opt/venv/lib/python3.11/site-packages"

NOISE = [
    f"{SITE}/torch/_subclasses/functional_tensor.py:368: UserWarning: Failed to initialize NumPy: No module named 'numpy' "
    "(Triggered internally at /pytorch/torch/csrc/utils/tensor_numpy.cpp:84.)\n  cpu = _conversion_method_template()\n",
    "2026-11-21 10:00:01.123456: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:477] Unable to register cuFFT "
    "factory: Attempting to register factory for plugin cuFFT when one has already been registered\n",
    "E0000 00:00:1732183201.123456    4242 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register "
    "factory for plugin cuDNN when one has already been registered\n",
    "[W1121 10:00:02.401912382 socket.cpp:767] [c10d] The client socket has failed to connect to [gpu11]:29500 (errno: 97 - "
    "Address family not supported by protocol).\n",
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling "
    "parallelism to avoid deadlocks...\n",
    "fatal: not a git repository (or any of the parent directories: .git)\n",
    "/bin/bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8): No such file or directory\n",
    "libgomp: Invalid value for environment variable OMP_NUM_THREADS\n",
    "wandb: ERROR Error while calling W&B API: rate limit exceeded (<Response [429]>), retrying\n",
    "WARNING: The following values were not passed to `accelerate launch` and had defaults used instead:\n"
    "\t`--num_machines` was set to a value of `1`\nTo avoid this warning pass in values for each of the problematic "
    "parameters or run `accelerate config`.\n",
    f"{SITE}/numpy/core/fromnumeric.py:3504: RuntimeWarning: invalid value encountered in scalar divide\n  ret = ret.dtype.type(ret / rcount)\n",
    "gpu11:4242:4301 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.\n",
    "Failed to import flash_attn, falling back to the slow path: No module named 'flash_attn'\n",
    "[WARNING] async_io requires the dev libaio .so object and headers but these were not found.\n",
    "Error in cpuinfo: prctl(PR_SVE_GET_VL) failed\n",
    "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.\n",
    "2026-11-21 10:00:03,101 INFO data: 0 errors, 12 files skipped\n",
    "2026-11-21 10:00:03,101 WARNING data: could not read /data/old.idx: No such file or directory, rebuilding it\n",
    "Some weights of Net were not initialized from the model checkpoint at base and are newly initialized: ['head.bias']\n",
    "[rank{rank}]:[W1121 10:00:04.217413 reducer.cpp:1457] Warning: find_unused_parameters=True was specified in DDP constructor, "
    "but did not find any unused parameters in the forward pass. (function operator())\n",
]
"""Of the start of a program, or while it works."""

OF_TORCHRUN = (
    "W1121 10:00:01.194000 5370 torch/distributed/run.py:874] \n"
    "W1121 10:00:01.194000 5370 torch/distributed/run.py:874] *****************************************\n"
    "W1121 10:00:01.194000 5370 torch/distributed/run.py:874] Setting OMP_NUM_THREADS environment variable for each process "
    "to be 1 in default, to avoid your system being overloaded, please further tune the variable for optimal performance in "
    "your application as needed. \n"
    "W1121 10:00:01.194000 5370 torch/distributed/run.py:874] *****************************************\n"
)
"""What torchrun prints first."""

NOISE_AT_END = [
    "wandb: \nwandb: You can sync this run to the cloud by running:\nwandb: wandb sync /home/ann/run/wandb/offline-run-1\n",
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 6 leaked "
    "semaphore objects to clean up at shutdown\n  warnings.warn('resource_tracker: There appear to be %d '\n",
    "[rank{rank}]:[W1121 10:07:00.771820 ProcessGroupNCCL.cpp:1476] Warning: WARNING: destroy_process_group() was not called before "
    "program exit, which can leak resources. (function operator())\n",
    "Exception ignored in: <function Loader.__del__ at 0x7f0bd3a4>\nTraceback (most recent call last):\n"
    f'  File "{SITE}/loader/core.py", line 91, in __del__\n    self.close()\n'
    "AttributeError: 'Loader' object has no attribute 'pool'\n",
    "sys:1: ResourceWarning: unclosed file <_io.TextIOWrapper name='x' mode='r'>\n",
    "Job finished at Sat Nov 21 10:07:09 UTC 2026\n",
]
"""Of the end of a process."""
