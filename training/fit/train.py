"""Train a drafter by a recipe; a run that was stopped goes on where it was.

python -m training.fit.train training/recipes/dfly.yaml
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from python_backend.assembly.engines import build_target
from python_backend.checkpoints.checkpoint import resolve_checkpoint, weights_sha256
from python_backend.checkpoints.decoder import load_weights, read_config
from python_backend.checkpoints.tokenizer import end_ids
from python_backend.drafters.weights import load as load_network
from python_backend.drafters.weights import save, target_parts
from python_backend.settings import Settings, load
from training.corpus.shards import MANIFEST, Corpus, Sample
from training.corpus.synthesize import FEATURE_LAYERS, synthesis_settings
from training.evaluate.acceptance import HeldOut, evaluate
from training.evaluate.simulate import Network
from training.fit.batches import Text, read_texts
from training.fit.curve import TrainingReport, plot_curve
from training.fit.recipe import Recipe, read_recipe
from training.fit.teacher import Teacher
from training.fit.trainer import Trainer, drafter_config, fresh_network
from training.fit.vocabulary import choose_vocabulary, coverage, measure_scale

MEASURED_TEXTS = 60  # after training; `make eval-drafters` takes all
console = Console()


def read_samples(
    settings: Settings, name: str, layers: tuple[int, ...], device: str, most: int | None = None
) -> tuple[Iterator[Sample], tuple[int, ...]]:
    """The first `most` sequences of a corpus with features, and the captured layers that these are.

    A GPU computes those of `layers` afresh.
    """
    if device == "cpu":
        return islice(open_corpus(settings, name), most), FEATURE_LAYERS
    corpus = Corpus(settings.cache_dir, name)
    return islice(Teacher(resolve_checkpoint(settings), device).samples(corpus, layers), most), layers


def open_corpus(settings: Settings, name: str) -> Corpus:
    """Features that are missing are computed from the tokens by the target."""
    corpus = Corpus(settings.cache_dir, name)
    if any(not (corpus.features_folder / file.name).is_file() for file in corpus.files):
        corpus.engine = build_target(synthesis_settings(slots=16, max_length=512))
    return corpus


def main(
    recipe_file: Annotated[Path, typer.Argument(help="YAML, see training/recipes.")],
    name: Annotated[str, typer.Option(help="Of the run; by default the recipe's.")] = "",
    corpus: Annotated[str, typer.Option(help="What to learn from.")] = "train",
    sequences: Annotated[int, typer.Option(help="Of it, the first so many; 0: all, in memory.")] = 0,
    held_out: Annotated[str, typer.Option(help="What to measure on.")] = "held_out",
    steps: Annotated[int, typer.Option(help="Instead of the recipe's; 0: the recipe's.")] = 0,
    tokens_per_step: Annotated[int, typer.Option(help="Instead of the recipe's; 0: the recipe's.")] = 0,
    seed: Annotated[int, typer.Option(help="Instead of the recipe's; -1: the recipe's.")] = -1,
    initial: Annotated[Path | None, typer.Option(help="Drafter folder whose weights to start from.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="0: one per core.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda")] = "cpu",
    min_coverage: Annotated[
        float, typer.Option(help="Of held-out response tokens; what is not covered can never be accepted.")
    ] = 0.95,
) -> None:
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    torch.set_float32_matmul_precision("high")  # TF32 where there is a GPU
    settings = load()
    changes = {"steps": steps or None, "tokens_per_step": tokens_per_step or None, "seed": None if seed < 0 else seed}
    recipe = read_recipe(recipe_file, **{key: value for key, value in changes.items() if value is not None})
    checkpoint = resolve_checkpoint(settings)
    final = read_config(checkpoint).layers
    with console.status("reading the corpus"):
        layers = tuple(sorted({*recipe.feature_layers, final}))
        learned, stored = read_samples(settings, corpus, layers, device, sequences or None)
        texts = read_texts(of_domains(learned, recipe), stored, recipe.feature_layers, final)
        measured = list(read_samples(settings, held_out, layers, device)[0])
        held_out_texts = read_texts(measured, stored, recipe.feature_layers, final)
    console.print(f"{len(texts):,} texts, {sum(len(t.ids) for t in texts):,} tokens; {len(held_out_texts)} held out")

    network = begin(recipe, checkpoint, texts, initial)
    covered = coverage(held_out_texts, network.draft_ids)
    console.print(f"the draft vocabulary covers {covered:.1%} of held-out response tokens")
    if covered < min_coverage:
        console.print(f"[red]that is below {min_coverage:.0%}: write a broader corpus, or draft from more tokens")
        raise typer.Exit(1)

    folder = settings.cache_dir / "training" / "runs" / (name or recipe_file.stem)
    trainer = Trainer(network, recipe, texts, device)
    if trainer.resume(folder):
        console.print(f"going on after step {trainer.progress.step:,}")
    with TrainingReport(console, recipe.steps, trainer.progress.step) as report:
        trainer.run(folder, report.line)
    save(network, folder)
    if trainer.progress.history:
        plot_curve(trainer.progress.history, folder / "curve.png")
    manifest = json.loads((Corpus(settings.cache_dir, corpus).folder / MANIFEST).read_text())
    pairs = [p for p in zip(held_out_texts, measured, strict=True) if p[1].temperature == 0]
    card = make_card(recipe, manifest, trainer, covered, initial) | measure(
        network, pairs, recipe.depth, MEASURED_TEXTS
    )
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n")
    console.print(f"weights, card and curve: {folder}")


def of_domains(samples: Iterable[Sample], recipe: Recipe) -> Iterator[Sample]:
    """What a recipe learns from."""
    return (s for s in samples if not recipe.domains or s.domain in recipe.domains)


def begin(recipe: Recipe, checkpoint: Path, texts: list[Text], initial: Path | None = None) -> Network:
    """The network as a recipe starts it: fresh over its corpus, or with the weights of a drafter folder."""
    shape = read_config(checkpoint)
    draft_ids = choose_vocabulary(texts, shape.vocabulary_size, recipe.draft_vocabulary_size, end_ids(checkpoint))
    if initial:
        return load_network(initial, checkpoint, draft_ids)
    return fresh_network(
        recipe,
        drafter_config(recipe, shape, weights_sha256(checkpoint)),
        target_parts(checkpoint),
        load_weights(checkpoint) if recipe.copy_layers else {},
        draft_ids,
        measure_scale(texts, len(recipe.feature_layers), shape.hidden_size),
    )


def measure(network: Network, pairs: list[tuple[Text, Sample]], depth: int, most: int) -> dict[str, object]:
    """Acceptance on up to `most` held-out texts, as a card has it; printed too."""
    texts, samples = zip(*pairs[:: -(-len(pairs) // most)], strict=True)
    pooled = evaluate(network, HeldOut(texts, samples), depth)
    for domain, acceptance in pooled.items():
        by_position = " ".join(f"{c:.3f}" for c in acceptance.cumulative)
        console.print(f"{domain:5} mean acceptance length {acceptance.mean_length:.3f}, cumulative {by_position}")
    return {
        "held_out_temperature_0": {
            domain: {
                "mean_acceptance_length": round(a.mean_length, 4),
                "cumulative_acceptance": [round(float(c), 4) for c in a.cumulative],
                "steps": a.steps,
            }
            for domain, a in pooled.items()
        }
    }


def make_card(
    recipe: Recipe, manifest: dict[str, object], trainer: Trainer, covered: float, initial: Path | None
) -> dict[str, object]:
    """How the weights were made."""
    progress = trainer.progress
    earlier = json.loads((initial / "card.json").read_text()) if initial else None
    return {
        "recipe": recipe.model_dump(mode="json"),
        "corpus": manifest,
        "steps": progress.step,
        "tokens": progress.tokens,
        "training_seconds": round(progress.seconds),
        "held_out_coverage": round(covered, 4),
        "started_from": earlier,
    }


if __name__ == "__main__":
    typer.run(main)
