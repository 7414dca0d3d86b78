"""Which choices pay: small trainings of equal steps over equal rows, as `experiments.yaml` lists them.

python -m training.evaluate.experiments run; then python -m training.evaluate.experiments show. Each result is a
drafter folder, so `python -m training.evaluate.eval_drafters FOLDER…` serves it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
import yaml
from pydantic import Field
from rich.console import Console
from rich.table import Table

from python_backend.checkpoints.checkpoint import resolve_checkpoint
from python_backend.checkpoints.decoder import read_config
from python_backend.drafters.weights import save
from python_backend.settings import ROOT, WORKLOADS, Settings, load
from training.corpus.shards import Corpus, Sample, corpus_folder, join
from training.evaluate.plots import Comparisons, over_seeds, plot_experiments
from training.fit.batches import read_texts
from training.fit.recipe import Recipe, Section, read_recipe
from training.fit.train import begin, measure, of_domains, read_samples
from training.fit.trainer import Trainer

HERE = Path(__file__).parent
LIST = HERE / "experiments.yaml"
DOMAINS = (*WORKLOADS, "all")
PART = "experiments"  # the corpus that they learn from
CARD = "card.json"

console = Console()
app = typer.Typer(add_completion=False)
Results = dict[str, list[dict[str, Any]]]  # of each run, one card a seed


class Experiments(Section):
    """The file, checked."""

    per_domain: int = Field(ge=1, description="texts of the corpus that are learned from")
    temperature: float = Field(ge=0, description="at which they were written")
    common: dict[str, Any] = Field(description="of all recipes")
    seeds: tuple[int, ...]
    runs: dict[str, dict[str, Any]]
    groups: dict[str, tuple[str, ...]]
    curves: dict[str, tuple[str, ...]]

    def recipe(self, run: str, seed: int) -> Recipe:
        """Raises pydantic.ValidationError naming the key and what it expects."""
        changes = dict(self.runs[run])
        changes.pop("from", None)
        file = ROOT / "training" / "recipes" / f"{changes.pop('recipe')}.yaml"
        return read_recipe(file, **(self.common | changes), seed=seed)

    def initial(self, run: str) -> Path | None:
        """The shipped drafter whose weights a run goes on from."""
        model = self.runs[run].get("from")
        return ROOT / "model_repository" / model / "1" if model else None


def results_folder(settings: Settings) -> Path:
    return settings.cache_dir / "training" / "experiments"


def read_experiments() -> Experiments:
    return Experiments.model_validate(yaml.safe_load(LIST.read_text()))


@app.command("run")
def run_command(
    names: Annotated[list[str] | None, typer.Argument(help="Runs of the list; by default all.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda")] = "cpu",
    corpus: Annotated[str, typer.Option(help="What to learn from, a part of it.")] = "train",
    texts: Annotated[int, typer.Option(help="Held-out texts to measure on.")] = 200,
    threads: Annotated[int, typer.Option(min=0, help="0: one per core.")] = 0,
    worker: Annotated[int, typer.Option(help="Of `workers` processes that share the list.")] = 0,
    workers: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Train what has no result yet."""
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    torch.set_float32_matmul_precision("high")
    settings, listed = load(), read_experiments()
    checkpoint = resolve_checkpoint(settings)
    final = read_config(checkpoint).layers
    todo = [(run, seed) for seed in listed.seeds for run in names or listed.runs][worker::workers]
    layers = tuple(sorted({final, *(i for run in listed.runs for i in listed.recipe(run, 0).feature_layers)}))
    choose_texts(settings, corpus, listed)
    samples, stored = read_samples(settings, PART, layers, device)
    learned = list(samples)
    held_out = [s for s in read_samples(settings, "held_out", layers, device)[0] if s.temperature == 0]
    for run, seed in todo:
        folder = results_folder(settings) / f"{run}-{seed}"
        if not (folder / CARD).is_file():
            console.print(f"{run}, seed {seed}")
            one(
                folder,
                listed.recipe(run, seed),
                checkpoint,
                listed.initial(run),
                learned,
                held_out[:: -(-len(held_out) // texts)],
                stored,
                device,
            )


def choose_texts(settings: Settings, corpus: str, listed: Experiments) -> None:
    """Make a corpus of the first texts of each domain, unless there is one."""
    file = corpus_folder(settings.cache_dir, PART) / "shard-0000.safetensors"
    if file.is_file():
        return
    whole = join(list(Corpus(settings.cache_dir, corpus).shards()))
    suits = np.isclose(whole.temperature, listed.temperature)
    first = [np.flatnonzero(suits & (whole.domain == d))[: listed.per_domain] for d in range(len(WORKLOADS))]
    whole.take(np.concatenate(first)).save(file)


def one(
    folder: Path,
    recipe: Recipe,
    checkpoint: Path,
    initial: Path | None,
    learned: list[Sample],
    held_out: list[Sample],
    stored: tuple[int, ...],
    device: str,
) -> None:
    """Train a run, measure it, and leave weights and card in a folder. initial: a drafter folder to start from."""
    final = read_config(checkpoint).layers
    texts = read_texts(of_domains(learned, recipe), stored, recipe.feature_layers, final)
    trainer = Trainer(begin(recipe, checkpoint, texts, initial), recipe, texts, device)
    clock = time.process_time if device == "cpu" else time.monotonic  # a CPU is shared with whatever else runs
    started = clock()
    trainer.run()
    seconds = clock() - started
    held_out_texts = read_texts(held_out, stored, recipe.feature_layers, final)
    pairs = list(zip(held_out_texts, held_out, strict=True))
    save(trainer.network, folder)
    card = {
        "recipe": recipe.model_dump(mode="json"),
        "parameters": sum(p.numel() for p in trainer.network.parameters()),
        "seconds": round(seconds, 1),
        "tokens": trainer.progress.tokens,
        "history": trainer.progress.history,
    } | measure(trainer.network, pairs, recipe.depth, len(pairs))
    (folder / CARD).write_text(json.dumps(card, indent=2) + "\n")


@app.command("show")
def show_command(
    results: Annotated[Path | None, typer.Argument(help="Folder of results; by default where `run` puts them.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG to write.")] = None,
) -> None:
    """A table for each comparison, and a plot."""
    listed, found = read_experiments(), read_results(results or results_folder(load()))
    groups, curves = measured(listed.groups, found), measured(listed.curves, found)
    for title, runs in groups.items():
        console.print(compare(title, runs))
    for title, runs in curves.items():
        console.print(compare(f"{title}, longer and longer", runs))
    if plot:
        plot_experiments(groups, curves, plot)


def read_results(folder: Path) -> Results:
    """Raises FileNotFoundError where there are none."""
    found: Results = {}
    for file in sorted(folder.glob(f"*/{CARD}")):
        found.setdefault(file.parent.name.rpartition("-")[0], []).append(json.loads(file.read_text()))
    if not found:
        raise FileNotFoundError(f"'{folder}' holds no results: run `python -m training.evaluate.experiments run`")
    return found


def measured(listed: dict[str, tuple[str, ...]], found: Results) -> Comparisons:
    """The comparisons, without runs that have no result yet."""
    chosen = {title: {run: found[run] for run in runs if run in found} for title, runs in listed.items()}
    return {title: runs for title, runs in chosen.items() if runs}


def compare(title: str, runs: Results) -> Table:
    """Mean acceptance length of each run and domain: mean over the seeds, and half their spread."""
    columns = (*DOMAINS, "conditional acceptance, code", "parameters", "seconds")
    table = Table("run", *columns, title=title, title_justify="left")
    for run, cards in runs.items():
        lengths, spread = over_seeds(cards, DOMAINS)
        several = len(cards) > 1
        cells = [f"{n:.3f} ±{s:.3f}" if several else f"{n:.3f}" for n, s in zip(lengths, spread.mean(0), strict=True)]
        seconds = f"{np.mean([c['seconds'] for c in cards]):.0f}"
        table.add_row(run, *cells, conditional(cards, "code"), f"{cards[0]['parameters'] / 1e6:.1f} M", seconds)
    return table


def conditional(cards: list[dict[str, Any]], domain: str) -> str:
    """Acceptance of each draft among steps whose earlier ones were accepted, mean over the seeds."""
    cumulative = np.mean([c["held_out_temperature_0"][domain]["cumulative_acceptance"] for c in cards], axis=0)
    shares = cumulative / np.concatenate(([1.0], np.maximum(cumulative[:-1], 1e-9)))
    return " ".join(f"{s:.2f}"[1:] if s < 1 else "1." for s in shares)


if __name__ == "__main__":
    app()
