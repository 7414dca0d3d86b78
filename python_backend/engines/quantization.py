"""Which arithmetic serves: what `target.quantization` says, or what this CPU is fast at."""

from __future__ import annotations

import logging
from pathlib import Path

from python_backend.settings import TargetSettings

log = logging.getLogger(__name__)

CPUINFO = Path("/proc/cpuinfo")
INT8_PRODUCTS = ("avx512_vnni", "amx_int8")  # flags of CPUs on which OpenVINO multiplies 8-bit integers


def int8_flags(cpuinfo: Path | None = None) -> tuple[str, ...]:
    """The instructions of this CPU that multiply 8-bit integers; none where the file is missing or names none.

    cpuinfo: by default CPUINFO.
    """
    cpuinfo = cpuinfo or CPUINFO
    if not cpuinfo.is_file():
        return ()
    words = {w for line in cpuinfo.read_text().splitlines() if line.startswith("flags") for w in line.split()}
    return tuple(flag for flag in INT8_PRODUCTS if flag in words)


def in_effect(target: TargetSettings, cpuinfo: Path | None = None) -> TargetSettings:
    """The same settings with `quantization` exact or int8-dynamic, never auto; `auto` keeps the promise of exactness.

    With 8-bit products a row's result depends on the rows beside it unless the engine is invariant, so both come
    together. Logs which it is and why.
    """
    if target.quantization != "auto":
        log.info("target.quantization %s, invariant %s", target.quantization, target.invariant)
        return target
    flags = int8_flags(cpuinfo) if target.engine == "openvino" else ()
    if flags:
        log.info("target.quantization auto: int8-dynamic with invariant, the CPU has %s", ", ".join(flags))
        return target.model_copy(update={"quantization": "int8-dynamic", "invariant": True})
    why = (
        f"the CPU has none of {', '.join(INT8_PRODUCTS)}" if target.engine == "openvino" else f"engine {target.engine}"
    )
    log.info("target.quantization auto: exact, invariant %s, %s", target.invariant, why)
    return target.model_copy(update={"quantization": "exact"})
