"""Causes of the software around the script: libraries, compilers."""

from __future__ import annotations

from ftslurm.failures.catalogue.cause import POINTLESS, PRIMARY, Cause
from ftslurm.failures.predicates import at_end, by_compiler, either, exception

_NO_LIBRARY = r"\.so\S*: cannot open shared object file: No such file"
_LIBRARY = (
    r"undefined symbol|version `\w+' not found|GLIBC(XX)?_\d|CXXABI_|symbol lookup error"
    r"|wrong ELF class|\.so\S* ?.{0,20}file too short|incompatib\w+ .{0,40}(cuDNN|NCCL|CUDA|version)"
    r"|SUBLIBRARY_VERSION_MISMATCH"
    r"|compiled (against|with|using) .{0,60}(version|CUDA|NumPy|API)"
)
_COMPILERS = (
    "PTXASError", "CompilationError", "CompileTimeAssertionFailure", "InductorError", "LoweringException",
    "CppCompileError",
    "CUDACompileError", "OutOfResources", "CompileError", "BackendCompilerFailed",
)  # fmt: skip

ROWS: tuple[Cause, ...] = (
    Cause("library-missing", "a shared library is missing", PRIMARY,
          either(exception("ImportError", "OSError", text=_NO_LIBRARY),
                 at_end(r".{0,300}error while loading shared libraries: .{1,200}: cannot open shared object file")),
          "Install it on this node or in the image, or load the module that has it (LD_LIBRARY_PATH).",
          not_for="libraries of other versions", restart=POINTLESS, behind=True),
    Cause("libc-old", "the node's C library is older than what was built for it", PRIMARY,
          either(exception("ImportError", "OSError", "RuntimeError", text=r"version `GLIBC_\d"),
                 at_end(r".{0,300}version `GLIBC_\d[\d.]{0,10}' not found")),
          "It cannot be replaced by itself: install a build for this system, build it here, or use a container.",
          not_for="a libstdc++ that another one shadows", restart=POINTLESS, behind=True),
    Cause("library-mismatch", "libraries do not fit together", PRIMARY,
          either(exception("ImportError", "OSError", "RuntimeError", "AttributeError", text=_LIBRARY),
                 at_end(r".{0,300}(error while loading shared libraries|symbol lookup error|version `\w+' not found)")),
          "See LD_LIBRARY_PATH and loaded modules on this node: a system library may shadow the environment's.",
          not_for="a module that is missing", restart=POINTLESS, behind=True),
    Cause("compile-cache", "a compiler's cache is damaged or not writable", PRIMARY,
          either(exception("FileNotFoundError", "JSONDecodeError", "EOFError", "OSError", "KeyError", "UnpicklingError",
          "PermissionError",
                    text=r"torchinductor_|/\.triton/|triton/cache|TRITON_CACHE|Unknown key: .{0,3}cubin"
                         r"|inductor.{0,20}cache"),
                 exception("ImportError", text="cannot stat shared object: Stale file handle")),
          "Use a node-local cache (TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR), and remove the old one.",
          not_for="a file of the script", behind=True),
    Cause("extension-build", "a C++ or CUDA extension could not be built", PRIMARY,
          exception("RuntimeError", text="Error building extension|Ninja is required"),
          "See the compiler's first error: in the source, or because compiler or headers do not fit this torch.",
          not_for="a kernel that torch or Triton generates", restart=POINTLESS, behind=True),
    Cause("compile-trace", "torch.compile cannot trace the code", PRIMARY,
          by_compiler("Unsupported", "TorchRuntimeError"),
          "Change that line, or keep its function out of what is compiled (torch.compiler.disable, fullgraph=False).",
          not_for="a kernel that does not compile", restart=POINTLESS, behind=True),
    Cause("compiler", "a kernel could not be compiled", PRIMARY,
          either(by_compiler(*_COMPILERS),
                 exception("RuntimeError", "CalledProcessError", text=r"ptxas |Internal Triton PTX"
                                                                      r"|Failed to find C compiler|nvcc|NVRTC"
                           r"|Triton (Error|compilation)"),
                 exception("TypeError", "KeyError", text="Unknown key: .{0,3}cubin")),
          "It fails the same way every time: compare versions of torch, Triton, CUDA and the compiler on this node.",
          not_for="a kernel that fails when it runs", restart=POINTLESS, behind=True),
)  # fmt: skip
