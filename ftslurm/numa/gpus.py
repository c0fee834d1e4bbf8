"""The PCI addresses of the GPUs that a program can use here, in CUDA's order."""

from __future__ import annotations

import ctypes

LIBRARY = "libcuda.so.1"
_LONGEST = 64


class NoGpus(Exception):
    """CUDA finds no GPU; the text is the reason."""


def addresses() -> list[str]:
    """Return the addresses, as "0000:1a:00.0"; of a MIG device its GPU's.

    CUDA's driver is asked, not NVML: what CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and MIG mean for a rank is its
    answer. It makes no context, so no memory of a GPU is taken. A driver that is broken may never return.

    Raises:
        NoGpus: there is none.
    """
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        raise NoGpus(f"no CUDA driver here ({LIBRARY})") from None
    count = ctypes.c_int()
    _check(driver, driver.cuInit(0))
    _check(driver, driver.cuDeviceGetCount(ctypes.byref(count)))
    if not count.value:
        raise NoGpus("CUDA finds no GPU")
    return [_address(driver, number) for number in range(count.value)]


def _address(driver: ctypes.CDLL, number: int) -> str:
    device, text = ctypes.c_int(), ctypes.create_string_buffer(_LONGEST)
    _check(driver, driver.cuDeviceGet(ctypes.byref(device), number))
    _check(driver, driver.cuDeviceGetPCIBusId(text, _LONGEST, device))
    return text.value.decode("ascii").lower()


def _check(driver: ctypes.CDLL, result: int) -> None:
    if result:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(result, ctypes.byref(name))
        raise NoGpus(f"CUDA finds no GPU ({name.value.decode() if name.value else result})")
