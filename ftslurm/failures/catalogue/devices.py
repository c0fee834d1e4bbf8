"""Causes of GPUs."""

from __future__ import annotations

from ftslurm.failures.catalogue.cause import GPU, OTHER_NODE, POINTLESS, PRIMARY, Cause
from ftslurm.failures.predicates import at_end, cuda, either, exception, tail, xid
from ftslurm.failures.retryability import BY_NODE, PERHAPS

ROWS: tuple[Cause, ...] = (
    Cause("cuda-oom", "out of GPU memory", PRIMARY,
          either(lambda e: e.exception == "OutOfMemoryError" and e.module.startswith("torch"),
                 exception("ResourceExhaustedError", "XlaRuntimeError", text="OOM when allocating|RESOURCE_EXHAUSTED"),
                 cuda(r"(CUDA|HIP|NPU|XPU) out of memory|(CUDA|HIP) error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
                      r"|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED")),
          "Smaller batch, activation checkpointing, or expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF (of an NPU:"
          " PYTORCH_NPU_ALLOC_CONF).",
          not_for="host memory that ran out", behind=True),
    Cause("gpu-ecc", "uncorrectable memory error of the GPU", PRIMARY,
          either(cuda(r"uncorrectable (ECC|NVLink) error"), xid(48, 64, 74, 95)),
          "The GPU or its link is faulty: exclude the node, report it (dmesg: Xid 48, 63, 64, 74, 94, 95).",
          not_for="an illegal memory access, a fault of the program", restart=OTHER_NODE, behind=True, blame=BY_NODE),
    Cause("gpu-lost", "the GPU is lost", PRIMARY,
          either(cuda(r"fallen off the bus|GPU is lost|GPU access blocked|RmInitAdapter failed"), xid(79)),
          "The GPU no longer answers (dmesg: Xid 79): exclude the node, report it.",
          not_for="a job without a GPU", restart=OTHER_NODE, behind=True, blame=BY_NODE),
    Cause("cuda-assert", "CUDA device-side assert", PRIMARY,
          either(cuda("device-side assert triggered"),
                 exception("RuntimeError", text=r"\A\S{1,300}\.cu\w{0,4}:\d+: .{1,300}Assertion `")),
          "Often an index out of range. Run with CUDA_LAUNCH_BLOCKING=1 for the right line.",
          not_for="a broken device", behind=True),
    Cause("gpu-xid", "critical error of the GPU (Xid)", PRIMARY,
          exception("RuntimeError", text=r"\A(NVRM: Xid |GPU \S{1,20}: Detected Critical Xid)"),
          "See its number in dmesg (NVRM: Xid) and in NVIDIA's list: 13, 31 and 43 are mostly the program's, 45 follows"
          " another one.",
          not_for="an error of CUDA, whose text says more", symptom_of=GPU),
    Cause("gpu-contained", "the GPU contained a memory error", PRIMARY,
          cuda(r"Invalid access of peer GPU memory over nvlink|[Cc]ontained (memory|ECC) error|CUDA_ERROR_CONTAINED"),
          "A memory or NVLink error of this GPU or of its peer (dmesg: Xid 74, 94, 95): exclude the node, report it.",
          not_for="an illegal memory access, a fault of the program", restart=OTHER_NODE, behind=True, blame=BY_NODE),
    Cause("gpu-stack", "hardware stack error of the GPU", PRIMARY, cuda("hardware stack error"),
          "The GPU is faulty, or a kernel corrupted its stack: exclude the node if it repeats there.",
          not_for="a device-side assert", restart=OTHER_NODE, behind=True, blame=BY_NODE),
    Cause("fabric-manager", "the GPUs' fabric is not initialised (error 802)", PRIMARY,
          cuda(r"Error 802|system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY"),
          "NVLink systems need a running nvidia-fabricmanager of the driver's version: ask the administrators.",
          not_for="a node without a GPU", restart=OTHER_NODE, blame=PERHAPS, symptom_of=GPU),
    Cause("gpu-peer", "access between GPUs is not possible", PRIMARY,
          cuda(r"(CUDA|HIP) error: .{0,80}\bpeer\b|peer access is not supported|peer mapping resources exhausted"),
          "See nvidia-smi topo -m; NCCL_P2P_DISABLE=1 works around it.",
          not_for="an NVLink error", restart=OTHER_NODE, blame=PERHAPS, symptom_of=GPU),
    Cause("gpu-architecture", "the program has no code for this GPU", PRIMARY,
          cuda(r"no kernel image is available|invalid device function|is not compatible with the current PyTorch"),
          "Install a build for this type of GPU (torch.cuda.get_arch_list()), or request another type.",
          not_for="a broken GPU", restart=POINTLESS),
    Cause("driver-version", "the GPU driver is too old for this CUDA", PRIMARY,
          cuda(r"driver version is insufficient|driver on your system is too old|forward compatibility was attempted"
               r"|unsupported toolchain|unsupported display driver"),
          "Compare nvidia-smi on this node with torch.version.cuda; other nodes may have another driver.",
          not_for="a missing driver", restart=OTHER_NODE, blame=PERHAPS),
    Cause("cuda-graph", "an operation that a CUDA graph cannot capture", PRIMARY,
          cuda(r"(CUDA|HIP) error: .{0,120}captur|CUDA graph.{0,80}captur"),
          "A fault of the program: see which call synchronises or allocates while the graph is captured.",
          not_for="an error of the device", restart=POINTLESS, blame=PERHAPS),
    Cause("amd-fault", "memory access fault of an AMD GPU", PRIMARY,
          either(tail("SIGABRT", r"(?m)^Memory access fault by GPU node|^HSA_STATUS_ERROR|HSA_STATUS_ERROR_\w+"),
                 exception("RuntimeError", text=r"HSA_STATUS_ERROR")),
          "A fault of the program or of the GPU: repeat with HIP_LAUNCH_BLOCKING=1; see dmesg (amdgpu), rocm-smi.",
          not_for="a segmentation fault of the host's code", blame=PERHAPS, symptom_of=GPU),
    Cause("hip-error", "HIP error", PRIMARY, cuda(r"^HIP error|^HIP runtime|MIOpen Error|miopenStatus|rocBLAS error"),
          "Look for amdgpu messages of this node in dmesg; if it repeats on this node, exclude it.",
          not_for="a message that only mentions HIP", blame=PERHAPS, symptom_of=GPU),
    Cause("gaudi", "error of a Gaudi accelerator", PRIMARY,
          either(exception(text=r"\bsyn(Status|Device)\w*|Habana|habana|\bHPU\b.{0,80}([Ee]rror|fail)|PT_DEVMEM"
                                r"|Graph compile failed"),
                 at_end(r".{0,120}(FATAL ERROR :: MODULE:PT_|\[SYN_|synStatus)")),
          "See hl-smi and dmesg (habanalabs) of this node.",
          not_for="a message that only mentions a device", symptom_of=GPU),
    Cause("ascend", "error of an Ascend accelerator", PRIMARY,
          exception(text=r"\bE[A-Z0-9]9999\b|\bE[A-Z]\d{4}: |\bERR0\d{4} |\bacl(rt|op|nn|mdl)\w+"
                         r"|\bHccl\w*(Error|[Tt]imeout|failed)|ACL_ERROR"),
          "See npu-smi and the plog files of this node; the E… code is in CANN's list.",
          not_for="a message that only mentions a device", symptom_of=GPU),
    Cause("gpu-missing", "no usable GPU", PRIMARY,
          either(cuda(r"no CUDA-capable device|No CUDA GPUs are available|Found no NVIDIA driver|invalid device ordinal"
                      r"|CUDA (driver )?initialization( failed|:)"),
                 exception("ValueError", "RuntimeError", text="ProcessGroupNCCL is only supported with GPUs")),
          "Check the request for GPUs (--gpus-per-node), CUDA_VISIBLE_DEVICES, and nvidia-smi on this node.",
          not_for="a GPU that failed in use", restart=OTHER_NODE, blame=PERHAPS, symptom_of=GPU),
    Cause("gpu-busy", "the GPU is busy", PRIMARY, cuda("CUDA-capable devices are busy or unavailable"),
          "Another process, perhaps a leftover one, holds it in exclusive mode: nvidia-smi on this node.",
          not_for="CUDA out of memory", restart=OTHER_NODE, blame=BY_NODE, symptom_of=GPU),
    Cause("cuda-access", "illegal memory access on the GPU", PRIMARY,
          cuda("illegal memory access|misaligned address|illegal instruction was encountered"),
          "A fault of the program: run with CUDA_LAUNCH_BLOCKING=1, or compute-sanitizer.",
          not_for="a hardware error (ECC, Xid 48)", behind=True, blame=PERHAPS, symptom_of=GPU),
    Cause("cuda-launch", "a CUDA kernel failed", PRIMARY, cuda("unspecified launch failure|launch timed out"),
          "Mostly a fault of the program (CUDA_LAUNCH_BLOCKING=1); with Xid messages in dmesg, the GPU's.",
          not_for="a proved hardware error", behind=True, blame=BY_NODE, symptom_of=GPU),
    Cause("cuda-argument", "CUDA refused a call", PRIMARY,
          cuda(r"(CUDA|HIP) error: (invalid (argument|resource handle|device pointer|value)|operation not supported)"
               r"|Cuda failure \d* ?'?(invalid argument|operation not supported)"),
          "A fault of the program or of its environment: compare the versions of driver, CUDA and NCCL with another"
          " node; NCCL_DEBUG=INFO and CUDA_LAUNCH_BLOCKING=1 show the call.",
          not_for="a GPU that failed", symptom_of=GPU),
    Cause("cuda-error", "CUDA error", PRIMARY, cuda(r"^(CUDA|CUDNN|cuDNN|CUBLAS|cuBLAS|NVML"
                                                    r"|NVRTC) (driver )?error|^cuDNN error|Cuda failure|C(UDNN"
                                                    r"|UBLAS)_STATUS_"
               r"|^cuda runtime error|^CUDA call failed"),
          "Look for Xid messages of this node in dmesg; if it repeats on this node, exclude it.",
          not_for="a message that only mentions CUDA", blame=PERHAPS, symptom_of=GPU),
)  # fmt: skip
