"""The operation of an entry of torch's flight recorder, and what of it must be equal on all ranks (pure).

Names are those of backends (`nccl:_all_gather_base`), which are not the ones of torch's functions: a barrier of NCCL is
an all-reduce, an uneven gather is made of broadcasts. Source: torch, ``ProcessGroupNCCL.cpp`` and
``ProcessGroupGloo.cpp`` in ``torch/csrc/distributed/c10d``, the `profilingTitle` of each function.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from ftslurm.dataclasses import dataclass

SEND, RECV = "send", "recv"
COALESCED = "coalesced"
"""Entry that stands for the operations between `_start_coalescing` and `_end_coalescing`; only it is ever completed."""
INPUTS, OUTPUTS, NOTHING = "inputs", "outputs", "nothing"

_NAMES = {
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "all_reduce_barrier": "barrier",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
}
# Tensors whose number of elements is the same on all ranks. Of other operations (all_to_all, those that make up an
# uneven all_gather, those of other backends) the sizes may legally differ.
_EQUAL = {
    "all_reduce": INPUTS,
    "allreduce_coalesced": INPUTS,
    "reduce": INPUTS,
    "broadcast": INPUTS,
    "all_gather": INPUTS,
    "all_gather_into_tensor_coalesced": INPUTS,
    "gather": INPUTS,
    "reduce_scatter": INPUTS,
    "reduce_scatter_tensor_coalesced": INPUTS,
    "scatter": OUTPUTS,
}
_UNEVEN = ("_broadcast_oop", "_reduce_oop")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Operations with a root, which the recorder does not have."""
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


@dataclass(frozen=True)
class Operation:
    """An operation with its tensors.

    Attributes:
        backend: "gloo", "nccl".
        name: as torch's function is called: "all_reduce".
        shapes: of the tensors that tell its size.
        dtypes: theirs, by torch's names in Python.
        sizes: what must be equal on all ranks: the elements of each tensor; None: they may differ.
        kinds: the same of the types of data.
        peers: source and destination of a transfer, by their numbers in the group; None: it is none.
    """

    backend: str
    name: str
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    sizes: tuple[int, ...] | None = None
    kinds: tuple[str, ...] | None = None
    peers: tuple[int, int] | None = None

    @property
    def data(self) -> str:
        """``[4096 float32]``, ``[2x3 bfloat16]``, ``[3 tensors, 40 float32]``; empty without tensors."""
        if not self.shapes or self.name == "barrier":
            return ""
        types = "/".join(dict.fromkeys(self.dtypes))
        if len(self.shapes) == 1:
            size = "x".join(str(number) for number in self.shapes[0]) or "scalar"
            return f"[{size} {types}]".replace(" ]", "]")
        return f"[{len(self.shapes)} tensors, {sum(map(prod, self.shapes))} {types}]"


@lru_cache(maxsize=65536)
def operation(
    profiling_name: str,
    input_sizes: tuple[tuple[int, ...], ...],
    input_dtypes: tuple[str, ...],
    output_sizes: tuple[tuple[int, ...], ...],
    output_dtypes: tuple[str, ...],
) -> Operation:
    """Return the operation of an entry; equal arguments give one object."""
    backend, _, title = profiling_name.rpartition(":")
    own, _, rest = title.partition(" ")
    name = _NAMES.get(own, own)
    peers = _peers(name, rest)
    use_outputs = _EQUAL.get(name) == OUTPUTS or (name == RECV and not input_sizes) or (not input_sizes)
    shapes = output_sizes if use_outputs else input_sizes
    dtypes = tuple(_dtype(each) for each in (output_dtypes if use_outputs else input_dtypes))
    transfer = name in (SEND, RECV)
    if own in _UNEVEN or (name not in _EQUAL and not transfer):
        return Operation(backend, name, shapes, dtypes, None, None, peers)
    return Operation(backend, name, shapes, dtypes, tuple(map(prod, shapes)), dtypes, peers)


def _peers(name: str, rest: str) -> tuple[int, int] | None:
    """Return source and destination in ``0->1`` of a send, or ``1<-0`` of a receive."""
    if name not in (SEND, RECV):
        return None
    arrow = "->" if name == SEND else "<-"
    one, _, other = rest.partition(arrow)
    if not (one.isdecimal() and other.isdecimal()):
        return None
    return (int(one), int(other)) if name == SEND else (int(other), int(one))


def _dtype(name: str) -> str:
    return _DTYPES.get(name, name.lower())


def differ(one: Operation, other: Operation) -> str | None:
    """Return in what two calls with one number differ: "operation", "size", "dtype"; None: in nothing that matters."""
    if one.name != other.name:
        return "operation"
    if one.sizes is None or other.sizes is None:
        return None
    if one.sizes != other.sizes:
        return "size"
    return "dtype" if one.kinds != other.kinds else None
