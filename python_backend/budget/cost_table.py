"""What a step costs on this machine: measured once at start-up, saved, reused while nothing has changed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from python_backend.files import appearing
from python_backend.protocol import Description

FORMAT = 4


@dataclass(frozen=True)
class CostTable:
    """Verify time over batch size x fraction of drafts kept, and draft time over batch size.

    verify[b][f]: ms of a pass over B = batch_sizes[b] sequences with B + fractions[f] x B x depth rows,
    non-decreasing along f. draft[name][b]: ms of one full-depth draft call; first_draft, of a call for one draft, where
    that is known. prompt_row_ms: of one row of prefill.
    """

    depth: int
    context_length: int
    batch_sizes: tuple[int, ...]
    fractions: tuple[float, ...]
    verify: tuple[tuple[float, ...], ...]
    draft: dict[str, tuple[float, ...]]
    first_draft: dict[str, tuple[float, ...]] = field(default_factory=dict)
    prompt_row_ms: float = 0.0

    def verify_ms(self, batch: int, rows: int) -> float:
        """Bilinear in (batch, fraction kept); beyond the last fraction the last slope goes on, beyond the largest
        batch size time grows with the rows."""
        sizes = self.batch_sizes
        if batch >= sizes[-1]:
            return self._at(len(sizes) - 1, batch, rows) * batch / sizes[-1]
        if batch <= sizes[0]:
            return self._at(0, batch, rows)
        upper = int(np.searchsorted(sizes, batch))
        lower = upper - 1
        share = (batch - sizes[lower]) / (sizes[upper] - sizes[lower])
        return (1 - share) * self._at(lower, batch, rows) + share * self._at(upper, batch, rows)

    def draft_ms(self, drafter: str, batch: int, depth: int) -> float:
        """Linear in the batch size and in the depth; 0 for no sequences."""
        full = np.array(self.draft[drafter])
        first = np.array(self.first_draft.get(drafter, full))
        curve = first + (full - first) * (depth - 1) / max(self.depth - 1, 1)
        return float(np.interp(batch, (0, *self.batch_sizes), (0.0, *curve)))

    def _at(self, b: int, batch: int, rows: int) -> float:
        fraction = (rows - batch) / max(1, batch * self.depth)
        curve = self.verify[b]
        if fraction <= self.fractions[-1] or len(curve) < 2:
            return float(np.interp(fraction, self.fractions, curve))
        slope = (curve[-1] - curve[-2]) / (self.fractions[-1] - self.fractions[-2])
        return curve[-1] + slope * (fraction - self.fractions[-1])


def monotone(curve: list[float]) -> tuple[float, ...]:
    """Running maximum: noise must not make more rows look cheaper."""
    return tuple(float(v) for v in np.maximum.accumulate(curve))


def fingerprint(target: Description, drafters: dict[str, Description], **measured: object) -> dict[str, object]:
    """All that a table's validity hangs on: hardware, engine, dtype, models and the shape of the measurement.

    The processor is of this machine; what runs an engine on another device is in the engine's own `hardware`.
    """
    return {
        "format": FORMAT,
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "usable": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
        },
        "target": asdict(target),
        "drafters": {name: asdict(d) for name, d in drafters.items()},
        "measured": measured,
    }


def table_path(folder: Path, mark: dict[str, object]) -> Path:
    digest = hashlib.sha256(json.dumps(mark, sort_keys=True, default=str).encode()).hexdigest()
    return folder / f"cost-{digest[:16]}.json"


def save(table: CostTable, mark: dict[str, object], path: Path) -> None:
    """Readable JSON, written whole or not at all."""
    with appearing(path) as part:
        part.write_text(json.dumps({"fingerprint": mark, "table": asdict(table)}, indent=1, default=str))


def load(path: Path) -> CostTable | None:
    """The saved table, or None where there is none or it cannot be read."""
    try:
        raw = json.loads(path.read_text())["table"]
        return CostTable(
            depth=raw["depth"],
            context_length=raw["context_length"],
            batch_sizes=tuple(raw["batch_sizes"]),
            fractions=tuple(raw["fractions"]),
            verify=tuple(tuple(curve) for curve in raw["verify"]),
            draft={name: tuple(curve) for name, curve in raw["draft"].items()},
            first_draft={name: tuple(curve) for name, curve in raw["first_draft"].items()},
            prompt_row_ms=float(raw["prompt_row_ms"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
