"""Plots of drafters' acceptance."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from training.simulate import Acceptance


def plot_acceptance(results: dict[float, dict[str, dict[str, Acceptance]]], path: Path) -> None:
    """Left: mean acceptance length by domain; right: conditional acceptance by position. A row a temperature.

    results: temperature -> drafter -> domain -> what was accepted.
    """
    figure, grid = plt.subplots(len(results), 2, figsize=(10, 3.6 * len(results)), squeeze=False)
    for (temperature, drafters), (bars, lines) in zip(results.items(), grid, strict=True):
        domains = [d for d in next(iter(drafters.values())) if d != "all"]
        width = 0.8 / len(drafters)
        for i, (name, pooled) in enumerate(drafters.items()):
            at = np.arange(len(domains)) + (i - (len(drafters) - 1) / 2) * width
            drawn = bars.bar(at, [pooled[d].mean_length for d in domains], width * 0.95, label=name)
            bars.bar_label(drawn, fmt="%.2f", fontsize=7)
            conditional = pooled["all"].conditional
            lines.plot(np.arange(1, len(conditional) + 1), conditional, marker="o", markersize=3, label=name)
        bars.set_xticks(np.arange(len(domains)), domains)
        bars.set_ylim(1, None)
        bars.set_ylabel("mean acceptance length")
        bars.set_title(f"temperature {temperature:g}", fontsize=9)
        lines.set_xlabel("draft position")
        lines.set_ylabel("accepted, given that earlier drafts are")
        lines.set_ylim(0, 1)
        lines.grid(alpha=0.3)
        lines.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
