"""Plots of drafters' acceptance."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb

from python_backend.protocol import Array
from python_backend.settings import WORKLOADS
from training.evaluate.simulate import Acceptance

Comparisons = dict[str, dict[str, list[dict[str, Any]]]]  # title -> run -> one card a seed

SHADES = (0.55, -0.4, 0.75, 0.3, -0.65)  # of a network's variants; neighbours differ


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
        bars.set_title(f"Mean acceptance length, temperature {temperature:g}", fontsize=9, loc="left")
        lines.set_title(f"Acceptance by draft position, all texts, temperature {temperature:g}", fontsize=9, loc="left")
        lines.set_xlabel("draft position")
        lines.set_ylabel("accepted, given that earlier drafts are")
        lines.set_ylim(0, 1)
        lines.grid(alpha=0.3)
    bars, lines = grid[0]
    figure.legend(*lines.get_legend_handles_labels(), fontsize=8, ncols=8, loc="lower center")
    figure.tight_layout(rect=(0, 0.3 / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_experiments(groups: Comparisons, curves: Comparisons, path: Path) -> None:
    """Mean acceptance length of each run by domain, a panel a comparison, and over the rows learned from; the whiskers
    span the seeds. A colour is a network, a shade of it a variant, and a run looks the same in every panel."""
    looks = colours([*groups.values(), *curves.values()])
    count = len(groups) + 1
    figure, grid = plt.subplots(count, 1, figsize=(9, 2.6 * count), squeeze=False)
    panels, last = grid[:-1, 0], grid[-1, 0]
    for (title, runs), panel in zip(groups.items(), panels, strict=True):
        width = 0.8 / len(runs)
        for i, (run, cards) in enumerate(runs.items()):
            mean, spread = over_seeds(cards, WORKLOADS)
            at = np.arange(len(WORKLOADS)) + (i - (len(runs) - 1) / 2) * width
            drawn = panel.bar(at, mean, width * 0.95, yerr=spread, capsize=2, label=run, color=looks[run])
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
        colour = looks[list(runs)[-1]]
        last.errorbar(rows, lengths, yerr=spreads, marker="o", markersize=3, capsize=2, label=title, color=colour)
    last.set_xscale("log")
    last.set_xlabel("rows learned from")
    last.set_ylabel("mean acceptance length")
    last.set_title("Longer and longer", fontsize=9, loc="left")
    last.grid(alpha=0.3)
    last.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def colours(comparisons: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """A colour for each run: the hue of its network, which is the first part of its name, and for a variant one of its
    shades."""
    hues: dict[str, Any] = {}
    chosen: dict[str, tuple[float, float, float]] = {}
    for runs in comparisons:
        shades: dict[str, Iterator[float]] = defaultdict(lambda: itertools.cycle(SHADES))
        for run in runs:
            network = re.split(r"[-+]", run)[0]
            red, green, blue = to_rgb(hues.setdefault(network, f"C{len(hues)}"))
            shade = 0.0 if run == network else next(shades[network])
            chosen.setdefault(run, (_shaded(red, shade), _shaded(green, shade), _shaded(blue, shade)))
    return chosen


def _shaded(part: float, shade: float) -> float:
    """Of a colour, towards white where shade is above 0, towards black below."""
    return part * (1 - abs(shade)) + max(shade, 0.0)


def over_seeds(cards: list[dict[str, Any]], domains: Sequence[str]) -> tuple[Array, Array]:
    """Mean acceptance length of each domain [n], and how far the seeds lie below and above it [2, n]."""
    lengths = np.array([[c["held_out_temperature_0"][d]["mean_acceptance_length"] for d in domains] for c in cards])
    mean = lengths.mean(0)
    return mean, np.abs(np.stack((lengths.min(0), lengths.max(0))) - mean)
