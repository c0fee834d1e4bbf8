"""Queries NVIDIA's driver through NVML (nvidia-ml-py), robust against drivers of the last ten years.

Values that a GPU or a driver does not have are None; errors are stored by name in the GPU's `errors`. A call may never
return: one process of their own reads NVML for all GPU checks, and records each call (`children.during`). It starts
NVML once, and asks nothing twice. The functions at the end are pure, for the checks' judges.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping

from ftslurm.dataclasses import dataclass, field, replace
from ftslurm.health import sysfs
from ftslurm.health.check import Absent, Check, Context, Fetch, Judge
from ftslurm.health.children import during
from ftslurm.health.verdict import Finding, Json
from ftslurm.health.xid_catalogue import bus_key
from ftslurm.records.health import UNKNOWN, WARN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT_S = 10.0
"""Time-out of all checks together. A driver without its persistence daemon first initialises the GPUs, one after the
other."""
LATE_ADVICE = "Look at the kernel log; the node needs a restart where nvidia-smi hangs too."
NVIDIA = "0x10de"

_SILENT = frozenset(
    (
        *("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION", "INVALID_ARGUMENT", "NO_DATA", "NOT_FOUND"),
        *("DEPRECATED", "IN_USE", "ARGUMENT_VERSION_MISMATCH", "VGPU_ECC_NOT_SUPPORTED", "OPERATING_SYSTEM"),
        *("INSUFFICIENT_SIZE", "INVALID_STATE", "NOT_READY"),
    )
)
"""Errors without relevance for a GPU's health: unsupported feature, old driver, or missing permission."""
LOST = frozenset({"GPU_IS_LOST", "RESET_REQUIRED", "INSUFFICIENT_POWER", "IRQ_ISSUE", "UNKNOWN", "TIMEOUT"})
"""Errors after which no program can use the GPU when every basic call ends with one."""
HIDDEN = frozenset({"NO_PERMISSION", "OPERATING_SYSTEM"})
"""Errors of a GPU that this process may not use: another job's."""
WORDS = {
    "GPU_IS_LOST": "it has fallen off the bus or cannot be reached",
    "RESET_REQUIRED": "it needs a reset before it can be used again",
    "INSUFFICIENT_POWER": "its external power cables are not connected",
    "IRQ_ISSUE": "its interrupts do not arrive",
    "UNKNOWN": "unknown error",
    "TIMEOUT": "time-out",
    "CORRUPTED_INFOROM": "its InfoROM is corrupted",
    "LIB_RM_VERSION_MISMATCH": "driver/library version mismatch",
    "DRIVER_NOT_LOADED": "the driver is not loaded",
}


def check(name: str, about: str, sets: Iterable[str], fetch: Fetch, judge: Judge, late: str = WARN) -> Check:
    """Return a check that calls NVML; see `Check`.

    Args:
        late: the status if NVML does not answer; only the checks for a hanging driver report it as a fault.
    """
    return Check(
        name,
        about,
        frozenset(sets),
        LIMIT_S,
        fetch,
        judge,
        late=late,
        late_text="the NVIDIA driver hangs",
        late_advice=LATE_ADVICE,
        may_hang=is_here,
        device="NVML",
    )


class Problem(Exception):
    """NVML itself does not start; the text is the error's name without its prefix: "DRIVER_NOT_LOADED"."""


@dataclass
class Gpu:
    """One GPU in NVML; for a MIG device, its parent.

    Attributes:
        number: NVML's index, which depends on the GPUs visible to this process.
        handle: None if unavailable.
        errors: by query, the error's name without its prefix.
        answers: value and error of each call so far, by function and arguments.
    """

    pynvml: Any
    number: int
    handle: Any = None
    errors: dict[str, str] = field(default_factory=dict)
    answers: dict[Any, tuple[Any, str | None]] = field(default_factory=dict)

    def query(self, what: str, names: str, *arguments: Any) -> Any:
        """Call the first function of `names` (without "nvmlDeviceGet", by spaces) that the driver has.

        None: unsupported, or it failed with an error in `errors` under `what`.
        """
        if self.handle is None:
            return None
        if not all(isinstance(one, int) for one in arguments):
            value, error = self._call(names, arguments)
        elif (names, arguments) in self.answers:
            value, error = self.answers[names, arguments]
        else:
            value, error = self.answers[names, arguments] = self._call(names, arguments)
        if error is not None:
            self.note(what, error)
        return value

    def _call(self, names: str, arguments: tuple[Any, ...]) -> tuple[Any, str | None]:
        for name in names.split():
            function = getattr(self.pynvml, f"nvmlDeviceGet{name}", None)
            if function is None:
                continue
            try:
                text = f"nvmlDeviceGet{name} of GPU {self.number}"
                return during(text, lambda: function(self.handle, *arguments)), None  # noqa: B023 (called here)
            except (self.pynvml.NVMLError_FunctionNotFound, mismatch(self.pynvml)):
                continue
            except self.pynvml.NVMLError as error:
                return None, error_name(self.pynvml, error)
        return None, None

    def note(self, what: str, error: str) -> None:
        """Store an error, unless it is irrelevant."""
        if error not in _SILENT:
            self.errors[what] = error

    def fields(self, *wanted: int | tuple[int, int]) -> list[int | None]:
        """Return the values of NVML's fields, each (field, scope) or a field; None where there is none."""
        values = self.query("fields", "FieldValues", list(wanted))
        if values is None:
            return [None] * len(wanted)
        return [_field_value(self.pynvml, value) for value in values]

    def facts(self, **more: Any) -> Json:
        """Return its identity, and `more`, for a check's facts."""
        pci = self.query("pci", "PciInfo_v3 PciInfo")
        return {
            "gpu": self.number,
            "bus": bus_key(text(pci.busId) or "") if pci is not None else None,
            "serial": text(self.query("serial", "Serial")),
            **more,
            "errors": dict(self.errors),
        }


def is_here(context: Context) -> bool:
    """Return whether there is NVML's library; pynvml, which takes ten times as long, only its users import."""
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


class Nvml:
    """NVML, initialised in this process.

    Raises:
        Absent: there is no NVML library here, or no pynvml.
        Problem: it exists, but does not start.
    """

    def __init__(self) -> None:
        if not is_here(Context("")):
            raise Absent("no NVIDIA driver here")
        try:
            self.pynvml: Any = importlib.import_module("pynvml")
        except ImportError:
            raise Absent("nvidia-ml-py is not installed: GPUs are not checked") from None
        # NVML is not shut down: the process ends anyway, and a failing driver could hang there.
        try:
            self.call("nvmlInit")
        except self.pynvml.NVMLError as error:
            name = error_name(self.pynvml, error)
            if name == "LIBRARY_NOT_FOUND":
                raise Absent("no NVIDIA driver here") from None
            raise Problem(name) from None
        self._gpus: list[Gpu] | None = None

    def call(self, name: str) -> Any:
        """Call a function without arguments."""
        return during(name, getattr(self.pynvml, name))

    def gpus(self) -> list[Gpu]:
        """Return all GPUs visible to this process in NVML, also those without a handle; without errors of queries."""
        if self._gpus is None:
            self._gpus = [self._gpu(number) for number in range(self.call("nvmlDeviceGetCount"))]
        return [replace(gpu, errors=dict(gpu.errors)) for gpu in self._gpus]

    def _gpu(self, number: int) -> Gpu:
        gpu = Gpu(self.pynvml, number)
        get = self.pynvml.nvmlDeviceGetHandleByIndex
        try:
            gpu.handle = during(f"nvmlDeviceGetHandleByIndex of GPU {number}", lambda: get(number))
        except self.pynvml.NVMLError as error:
            gpu.errors["handle"] = error_name(self.pynvml, error)
        return gpu


_started: Nvml | Absent | Problem | None = None


def started() -> Nvml:
    """Return NVML, which is started at most once in this process; raises as `Nvml`."""
    global _started
    if _started is None:
        try:
            _started = Nvml()
        except (Absent, Problem) as error:
            _started = error
    if isinstance(_started, Exception):
        raise _started
    return _started


def of_job(gpus: list[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Return this job's GPUs, by its environment; all of them if that is unknown.

    Where jobs can see each other's GPUs, a fault of another job's GPU is no reason to leave a node out.
    """
    given_ = given(environ)
    if given_ is None or given_ >= len(gpus):
        return gpus
    numbers = own(environ, [{"gpu": gpu.number, "uuid": text(gpu.query("uuid", "UUID"))} for gpu in gpus])
    return gpus if numbers is None else [gpu for gpu in gpus if gpu.number in numbers]


def each(environ: Mapping[str, str], facts: Callable[[Gpu], Json | None]) -> Json:
    """Fetch `facts` of each accessible GPU of the job: {"gpus": [...]}.

    Args:
        environ: the job's.
        facts: function of one GPU; if it returns None, the GPU is omitted.

    Raises:
        Absent: there is none, or NVML does not start, which "gpu-driver" judges.
    """
    try:
        gpus = started().gpus()
    except Problem as problem:
        raise Absent(f"NVML does not start ({WORDS.get(str(problem), str(problem))}): see gpu-driver") from None
    found = []
    for gpu in of_job([gpu for gpu in gpus if gpu.errors.get("handle") not in HIDDEN], environ):
        if (more := facts(gpu) if gpu.handle is not None else {}) is not None:
            found.append(gpu.facts(**more))
    if not found:
        raise Absent("no NVIDIA GPU for this job")
    return {"gpus": found}


def mismatch(pynvml: Any) -> type[Exception]:
    """Return pynvml's exception for a driver older than an unversioned function name requires."""
    kind: type[Exception] = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError_FunctionNotFound)
    return kind


def error_name(pynvml: Any, error: Any) -> str:
    """Return "GPU_IS_LOST" for that error, "999" for a number without a name."""
    number = getattr(error, "value", None)
    for name, value in vars(pynvml).items():
        if name.startswith("NVML_ERROR_") and value == number:
            return str(name).removeprefix("NVML_ERROR_")
    return str(number)


def text(value: Any) -> str | None:
    """Return a string of NVML; older bindings return bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)


def _field_value(pynvml: Any, value: Any) -> int | None:
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    kind = int(value.valueType)
    return int(getattr(value.value, names[kind])) if kind < len(names) else None


def pci_gpus(root: str, vendor: str = NVIDIA) -> dict[str, str]:
    """Return the GPUs of a vendor on the PCI bus from sysfs: address -> kernel driver, empty without one."""
    directory = f"{root}/sys/bus/pci/devices"
    found = {}
    for bus in sysfs.names(directory):
        device = f"{directory}/{bus}"
        if read_text(f"{device}/vendor") == vendor and read_text(f"{device}/class")[:6] in _GPU_CLASSES:
            try:
                found[bus] = os.path.basename(os.readlink(f"{device}/driver"))
            except OSError:
                found[bus] = ""
    return found


_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D, other display, processing accelerator


def read_text(path: str) -> str:
    """Return a small file's text, stripped; empty if it cannot be read."""
    return sysfs.text(path) or ""


def given(environ: Mapping[str, str]) -> int | None:
    """Return the number of GPUs that Slurm allocated to this job on this node; None: unknown."""
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    if count.isdigit():
        return int(count)
    # A step on another node than the batch script inherits the script's SLURM_JOB_GPUS.
    listed = environ.get("SLURM_STEP_GPUS") or ("" if "SLURM_STEP_ID" in environ else environ.get("SLURM_JOB_GPUS", ""))
    return len(listed.split(",")) if listed else None


def own(environ: Mapping[str, str], gpus: list[Json]) -> set[int] | None:
    """Return the indices of this job's GPUs, of facts with "uuid"; None: unknown.

    Relevant only where a job can see the GPUs of others.
    """
    if (given_ := given(environ)) is None or given_ >= len(gpus):
        return {gpu["gpu"] for gpu in gpus}
    names = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    found = set()
    for name in names:
        same = [
            gpu["gpu"]
            for gpu in gpus
            if (name.isdigit() and gpu["gpu"] == int(name)) or (gpu.get("uuid") or "").startswith(name)
        ]
        if len(same) != 1:
            return None
        found.add(same[0])
    return found or None


def subject(gpu: Json) -> str:
    """Return the subject of a finding: "GPU 3"."""
    return f"GPU {gpu['gpu']}"


def where(gpu: Json) -> str:
    """Return that GPU's identity, for a finding's text: "(0000:1b:00.0, serial 1322621018211)"."""
    known = [gpu.get("bus") or "", f"serial {gpu['serial']}" if gpu.get("serial") else ""]
    known = [part for part in known if part]
    return f" ({', '.join(known)})" if known else ""


def earlier(gpu: Json, before: Json | None) -> Json | None:
    """Return the same GPU's facts in the previous run, if any."""
    for other in (before or {}).get("gpus", ()):
        same = other.get("bus") == gpu.get("bus") if gpu.get("bus") else other.get("gpu") == gpu.get("gpu")
        if same and other.get("serial") == gpu.get("serial"):
            return dict(other)
    return None


def growth(now: int | None, before: int | None) -> int:
    """Return the growth of a counter; one that fell was reset."""
    if now is None or before is None:
        return 0
    return now - before if now >= before else now


def unread(facts: Json) -> list[Finding]:
    """Return a finding for each GPU with unreadable values; broken GPUs are reported by "gpu-count"."""
    return [
        Finding(UNKNOWN, subject(gpu), f"could not be read: {error_words(gpu['errors'])}{where(gpu)}", SEE_COUNT)
        for gpu in facts["gpus"]
        if gpu["errors"]
    ]


SEE_COUNT = "See gpu-count."


def error_words(errors: Mapping[str, str]) -> str:
    """Return the errors as text, each once."""
    return "; ".join(dict.fromkeys(WORDS.get(name, name.lower().replace("_", " ")) for name in errors.values()))
