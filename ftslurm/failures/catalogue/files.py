"""Causes of files: disks, filesystems, checkpoints."""

from __future__ import annotations

from ftslurm.failures.catalogue.cause import OLDER_CHECKPOINT, OTHER_NODE, POINTLESS, PRIMARY, Cause
from ftslurm.failures.evidence import Evidence
from ftslurm.failures.predicates import damaged, either, exception, not_quoted, not_saved, os_error, signal, with_path
from ftslurm.failures.retryability import PERHAPS

_NOT_WRITTEN = exception(
    "RuntimeError",
    text="PytorchStreamWriter failed writing|unexpected pos [0-9]+ vs|basic_ios::clear: iostream error",
)
"""What torch raises without a reason."""
_FULL = "No space left on device"


def _without_directory(e: Evidence) -> bool:
    """Match a path that has no name: that of the working directory, which the system no longer knows."""
    last = e.frames[-1] if e.frames else None
    asks = last is not None and (last.function in ("abspath", "cwd", "realpath") or "getcwd" in (last.source or ""))
    return e.exception == "FileNotFoundError" and e.message == "[Errno 2] No such file or directory" and asks


ROWS: tuple[Cause, ...] = (
    Cause("checkpoint-damaged", "a checkpoint is damaged", PRIMARY, damaged,
          "Load an older one; a downloaded one may be incomplete, or a pointer of Git LFS. Write to a temporary name"
          " and rename (ftslurm.commit), so that none is cut off.",
          not_for="a checkpoint that is complete but of another model", restart=OLDER_CHECKPOINT, behind=True),
    Cause("data-damaged", "a data file is damaged or incomplete", PRIMARY,
          exception(text=r"ended before the end-of-stream marker|CRC check failed|Not a gzipped file"
                         r"|Error -3 while decompress"
                    r"|cannot identify image file|image file is truncated|Parquet magic bytes not found"
                    r"|[Uu]nexpected end of (data|file|stream)|not a zip file|Bad magic number for"
                    r"|invalid block type|Could not open Parquet input"),
          "Compare it with the original, and copy it again; loaders can skip damaged samples.",
          not_for="a checkpoint", behind=True),
    Cause("checkpoint-mismatch", "the checkpoint does not fit the model", PRIMARY,
          not_saved(exception("RuntimeError", "ValueError", "KeyError", text=r"Error\(s\) in loading state_dict"
                    r"|\Asize mismatch for |Missing key in checkpoint state_dict|Size mismatch between saved"
                    r"|loaded state dict (has|contains)"
                    r"|[Uu]nexpected key\(s\) in state_dict|Failed to validate global plan")),
          "Compare model, parallel sizes and versions with those of the run that saved it; no restart changes them.",
          not_for="a damaged file", restart=POINTLESS, behind=True),
    Cause("weights-only", "torch.load refuses the objects in this file", PRIMARY,
          exception("UnpicklingError", text="Weights only load failed"),
          "Allow them (torch.serialization.add_safe_globals), or weights_only=False for a file that you trust.",
          not_for="a damaged file", restart=POINTLESS, behind=True),
    Cause("file-locks", "the filesystem gives no locks", PRIMARY, os_error(37),
          "The lock service of that filesystem is down or not mounted (flock): keep locks and caches on another one.",
          not_for="a lock that another process holds", restart=OTHER_NODE, behind=True),
    Cause("inotify-limit", "the limit of inotify watches is reached", PRIMARY,
          lambda e: os_error(24, 28)(e) and "inotify" in e.message,
          "Watch fewer files, or have the administrators raise fs.inotify.max_user_watches and max_user_instances.",
          not_for="a full disk", restart=OTHER_NODE, blame=PERHAPS),
    Cause("no-directory", "the working directory no longer exists", PRIMARY, _without_directory,
          "Something has removed it while the job ran: a cleanup, or a remounted filesystem.",
          not_for="a path that does not exist"),
    Cause("disk-full", "disk full", PRIMARY, either(os_error(28), not_quoted(exception(text=_FULL), _FULL)),
          "Free space (or inodes) on that filesystem, or write elsewhere.",
          not_for="a quota, or a full /dev/shm behind a bus error", behind=True, blame=PERHAPS),
    Cause("quota", "disk quota exceeded", PRIMARY, either(os_error(122), exception(text="[Dd]isk quota exceeded")),
          "Free space under that quota, or write elsewhere.", not_for="a full filesystem", behind=True),
    Cause("file-size", "file size limit", PRIMARY,
          either(os_error(27), signal("SIGXFSZ"), lambda e: e.file_limit is not None and _NOT_WRITTEN(e)),
          "See ulimit -f of the job.", not_for="a full disk", restart=POINTLESS),
    Cause("write-failed", "a file could not be written", PRIMARY,
          _NOT_WRITTEN,
          "torch gives no reason; check the target filesystem for a full disk or an exceeded quota.",
          not_for="a disk that is provably full", behind=True, vague=True),
    Cause("read-only", "read-only filesystem", PRIMARY, os_error(30),
          "Write elsewhere; a filesystem turns read-only after errors (dmesg).",
          not_for="missing permissions", restart=OTHER_NODE, behind=True, blame=PERHAPS),
    Cause("filesystem", "the filesystem failed", PRIMARY,
          either(os_error(5, 107, 108, 112, 113, 116, 121), with_path(110, 19, 6, 512),
                 exception("RuntimeError", text=r"\A(write|read|fsync|close)\(\): fd \d+ failed with Input/output"),
                 exception("OSError", "IOError", text=r"Input/output error|Stale file handle"
                           r"|Transport endpoint is not connected|\berrno = (5|107|108|116|121)\b")),
          "The storage (NFS, Lustre, NVMe) or its network, not the script: see dmesg of this node, and the storage.",
          not_for="a missing file", restart=OTHER_NODE, behind=True, blame=PERHAPS),
    Cause("missing-file", "a file is missing", PRIMARY, exception("FileNotFoundError"),
          "Check that the path exists on this node too, not only on the login node.",
          not_for="a module that is missing"),
    Cause("permission", "permission denied", PRIMARY, either(exception("PermissionError"), os_error(1, 13)),
          "Check the owner and the mode of the path on this node.", not_for="a read-only filesystem"),
)  # fmt: skip
