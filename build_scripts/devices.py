"""Whether the devices of the settings are there, asked of the driver: no framework has to be loaded for it."""

from __future__ import annotations

import ctypes

from build_scripts.triton_install import PreflightError
from python_backend.settings import Settings

DRIVER = "libcuda.so.1"


def check_devices(settings: Settings) -> None:
    """Raises PreflightError for the first CUDA device of the settings that this machine lacks."""
    wanted = {"target.device": settings.target.device}
    wanted |= {f"drafters.{name}.device": d.device for name, d in settings.drafters.items() if d.kind == "network"}
    for key, device in wanted.items():
        kind, _, index = device.partition(":")
        if kind == "cuda" and (found := gpus()) <= int(index or 0):
            has = f"{found} GPU" if found == 1 else f"{found or 'no'} GPUs"
            raise PreflightError(f"{key} is '{device}', and this machine has {has} that CUDA can use: set it to cpu")


def gpus() -> int:
    """How many the driver shows; 0 without a driver."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value
