"""Plots of drafters' acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from python_backend.protocol import Array
from python_backend.settings import WORKLOADS
from training.simulate import Acceptance

Comparisons = dict[str, dict[str, list[dict[str, Any]]]]  # title -> run -> one card a seed


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


def plot_experiments(groups: Comparisons, curves: Comparisons, path: Path) -> None:
    """Mean acceptance length of each run by domain, a panel a comparison, and over the rows learned from; the whiskers
    span the seeds."""
    count = len(groups) + 1
    figure, grid = plt.subplots(count, 1, figsize=(9, 2.6 * count), squeeze=False)
    panels, last = grid[:-1, 0], grid[-1, 0]
    for (title, runs), panel in zip(groups.items(), panels, strict=True):
        width = 0.8 / len(runs)
        for i, (run, cards) in enumerate(runs.items()):
            mean, spread = over_seeds(cards, WORKLOADS)
            at = np.arange(len(WORKLOADS)) + (i - (len(runs) - 1) / 2) * width
            drawn = panel.bar(at, mean, width * 0.95, yerr=spread, capsize=2, label=run)
            panel.bar_label(drawn, fmt="%.2f", fontsize=7, padding=2)
        panel.set_xticks(np.arange(len(WORKLOADS)), WORKLOADS)
        panel.set_ylim(1, None)
        panel.set_ylabel("mean acceptance length")
        panel.set_title(title, fontsize=9, loc="left")
        panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    for title, runs in curves.items():
        measured = [over_seeds(cards, ("all",)) for cards in runs.values()]
        rows = [np.mean([c["tokens"] for c in cards]) for cards in runs.values()]
        lengths, spreads = (np.concatenate(parts, -1) for parts in zip(*measured, strict=True))
        last.errorbar(rows, lengths, yerr=spreads, marker="o", markersize=3, capsize=2, label=title)
    last.set_xscale("log")
    last.set_xlabel("rows learned from")
    last.set_ylabel("mean acceptance length")
    last.set_title("Longer and longer", fontsize=9, loc="left")
    last.grid(alpha=0.3)
    last.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def over_seeds(cards: list[dict[str, Any]], domains: Sequence[str]) -> tuple[Array, Array]:
    """Mean acceptance length of each domain [n], and how far the seeds lie below and above it [2, n]."""
    lengths = np.array([[c["held_out_temperature_0"][d]["mean_acceptance_length"] for d in domains] for c in cards])
    mean = lengths.mean(0)
    return mean, np.abs(np.stack((lengths.min(0), lengths.max(0))) - mean)
