"""How good the drafters are on held-out texts: `make eval-drafters`.

Acceptance comes from path simulation in float32 and, for a share of the texts, from the served engine call by call.
Calibrations are fitted on every other text and judged on the rest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from python_backend.assembly.drafters import weights_folder
from python_backend.checkpoints.checkpoint import resolve_checkpoint
from python_backend.checkpoints.decoder import read_config
from python_backend.drafters.calibration import CALIBRATION, Calibration
from python_backend.drafters.config import CONFIG
from python_backend.drafters.engine import NetworkDrafter
from python_backend.drafters.prompt_lookup import PromptLookup
from python_backend.drafters.weights import load as load_network
from python_backend.engine import DrafterEngine
from python_backend.settings import NETWORK, ROOT, Settings, load
from training.corpus.shards import Sample
from training.corpus.synthesize import FEATURE_LAYERS
from training.evaluate.acceptance import HeldOut, draft_text, evaluate, pool
from training.evaluate.calibrate import Observations, apply, expected_calibration_error, fit, join, observe
from training.evaluate.engine_walk import walk_engine
from training.evaluate.plots import plot_acceptance
from training.evaluate.simulate import Acceptance
from training.fit.batches import Text, read_texts
from training.fit.train import open_corpus

LOOKUP_DEPTH = 7
MAX_LENGTH = 1024

console = Console()


class Result(NamedTuple):
    """What one drafter did on texts of one temperature."""

    simulated: dict[str, Acceptance]  # by domain and `all`
    served: Acceptance | None  # a share of the texts
    same_simulated: Acceptance | None  # the very same texts
    calibration_error: tuple[float, float] | None  # before and after
    greedy: dict[str, Acceptance] | None = None  # drafts without the target's noise, where texts were drawn with it


def served(settings: Settings) -> dict[str, Path]:
    """The networks that the settings name."""
    drafters = settings.drafters.items()
    return {name: weights_folder(name, drafter) for name, drafter in drafters if drafter.kind == NETWORK}


def shipped() -> dict[str, Path]:
    """The networks that the repository has weights of."""
    return {file.parent.parent.name: file.parent for file in sorted(ROOT.glob(f"model_repository/*/1/{CONFIG}"))}


def measure_network(
    folder: Path, checkpoint: Path, pairs: list[tuple[Text, Sample]], served_share: int, label: str
) -> tuple[Result, Observations]:
    """Simulate all texts, and serve every `served_share`-th."""
    network = load_network(folder, checkpoint).eval()
    depth = network.config.depth
    engine = NetworkDrafter(label, folder, checkpoint, 1, MAX_LENGTH)
    results, observations, served, same = [], [], Acceptance(depth), Acceptance(depth)
    for i, (text, sample) in enumerate(track(pairs, label, console=console, transient=True)):
        drafts = draft_text(network, text, sample, depth)
        acceptance = Acceptance(depth)
        acceptance.walk(text.ids, drafts)
        results.append((sample.domain, acceptance))
        observations.append(observe(drafts.tokens, drafts.probability, text.ids[text.response_start + 1 :]))
        if served_share and i % served_share == 0:
            served.add(walk_engine(engine, text, sample, depth))
            same.add(acceptance)
    fitted, judged = join(observations[::2]), join(observations[1::2])
    curve = fit(fitted, depth)
    before = expected_calibration_error(judged.probability, judged.accepted)
    after = expected_calibration_error(apply(curve, judged), judged.accepted)
    greedy = None
    if pairs[0][1].temperature > 0:
        texts, samples = zip(*pairs, strict=True)
        greedy = evaluate(network, HeldOut(texts, samples), depth, greedy=True)
    simulated = pool(results, depth)
    return Result(simulated, served if served.steps else None, same, (before, after), greedy), join(observations)


def measure_engine(engine: DrafterEngine, pairs: list[tuple[Text, Sample]], depth: int) -> Result:
    return Result(pool([(s.domain, walk_engine(engine, t, s, depth)) for t, s in pairs], depth), None, None, None)


def read_pairs(
    settings: Settings, name: str, layers: tuple[int, ...], final_layer: int, temperature: float, most: int
) -> list[tuple[Text, Sample]]:
    """Up to `most` texts that were sampled at a temperature, spread over the domains, with the layers that are read."""
    samples = [s for s in open_corpus(settings, name) if s.temperature == temperature]
    samples = samples[:: -(-len(samples) // most)]
    return list(zip(read_texts(samples, FEATURE_LAYERS, layers, final_layer), samples, strict=True))


def main(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Drafter folders; by default those served, else those shipped.")
    ] = None,
    held_out: Annotated[str, typer.Option(help="Texts to measure on.")] = "held_out",
    served_share: Annotated[int, typer.Option(help="Serve every n-th text too; 0: none.")] = 6,
    texts: Annotated[int, typer.Option(min=2, help="Of each temperature, at most.")] = 1000,
    sampled: Annotated[bool, typer.Option(help="Texts sampled at temperature 1 too.")] = True,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Write the fitted calibration beside the weights.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="PNG to write.")] = None,
) -> None:
    settings = load()
    checkpoint = resolve_checkpoint(settings)
    final = read_config(checkpoint).layers
    networks = {f.parent.name if f.name == "1" else f.name: f for f in folders or ()} or served(settings) or shipped()
    shown: dict[float, dict[str, Result]] = {}
    curves: dict[str, dict[float, Observations]] = {name: {} for name in networks}
    for temperature in (0.0, 1.0) if sampled else (0.0,):
        pairs = read_pairs(settings, held_out, (final,), final, temperature, texts)
        lookup = PromptLookup("prompt_lookup", 1, MAX_LENGTH, LOOKUP_DEPTH, 1, 4)
        shown[temperature] = {"prompt_lookup": measure_engine(lookup, pairs, LOOKUP_DEPTH)}
        for name, folder in networks.items():
            layers = json.loads((folder / "config.json").read_text())["feature_layers"]
            mine = read_pairs(settings, held_out, tuple(layers), final, temperature, texts)
            result, curves[name][temperature] = measure_network(folder, checkpoint, mine, served_share, name)
            shown[temperature][name] = result
        show(shown[temperature], temperature)
    if calibrate:
        for name, folder in networks.items():
            write_calibration(folder, curves[name])
    if plot:
        plot_acceptance({t: {n: r.simulated for n, r in results.items()} for t, results in shown.items()}, plot)
        console.print(f"plot: {plot}")


def write_calibration(folder: Path, observed: dict[float, Observations]) -> None:
    """Curves from all observations. Drafts that race take the greedy curve where none were measured."""
    depth = int(max(o.position.max() for o in observed.values())) + 1
    greedy = fit(observed[0.0], depth)
    sampled = fit(observed[1.0], depth) if 1.0 in observed else greedy
    (folder / CALIBRATION).write_text(Calibration(greedy=greedy, sampled=sampled).model_dump_json(indent=2) + "\n")


def show(results: dict[str, Result], temperature: float) -> None:
    table = Table(title=f"held-out texts at temperature {temperature:g}", title_justify="left")
    for column in ("drafter", "texts", "mean acceptance length", "cumulative, by position", "conditional"):
        table.add_column(column, justify="right" if column == "mean acceptance length" else "left")
    for name, result in results.items():
        for domain, acceptance in result.simulated.items():
            table.add_row(
                name if domain == "all" else "",
                domain,
                f"{acceptance.mean_length:.3f}",
                positions(acceptance.cumulative),
                positions(acceptance.conditional),
            )
        if result.greedy:
            lengths = ", ".join(f"{name} {a.mean_length:.3f}" for name, a in result.greedy.items() if name != "all")
            table.add_row("", "likeliest drafts", f"{result.greedy['all'].mean_length:.3f}", lengths, "")
        if result.served and result.same_simulated:
            ratio = result.served.mean_length / result.same_simulated.mean_length - 1
            table.add_row(
                "", "served", f"{result.served.mean_length:.3f}", f"{ratio:+.1%} against the same simulated", ""
            )
        if result.calibration_error:
            before, after = result.calibration_error
            table.add_row("", "calibration error", "", f"{before:.3f} raw, {after:.3f} calibrated", "")
        table.add_section()
    console.print(table)


def positions(shares: np.ndarray) -> str:  # type: ignore[type-arg]
    return " ".join(f".{round(1000 * s):03d}" if s < 1 else "1." for s in shares)


if __name__ == "__main__":
    typer.run(main)
