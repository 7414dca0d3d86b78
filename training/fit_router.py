"""Fit the classifier that decides chat, code or math from the target's view of a prompt: `make fit-router`.

It learns from the corpus, whose prompts say what they are; it is judged, beside the keyword rule, on held-out prompts
and on any files of prompts that are given as `workload=file`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from python_backend.coordinator.router import PromptClassifier, pool, route
from python_backend.engines.checkpoint import resolve_checkpoint, weights_sha256
from python_backend.engines.decoder import read_config
from python_backend.engines.factory import build_target
from python_backend.settings import ROOT, WORKLOADS, Settings, Workload, load
from python_backend.tokenizer import load_tokenizer
from training.corpus import Corpus, compute_features
from training.synthesize import FEATURE_LAYERS, synthesis_settings

ROUTER = ROOT / "python_backend" / "coordinator" / "router.safetensors"
PENALTY = 0.05  # inverse strength of the ridge: there are more dimensions than kinds of prompts

console = Console()


class Prompts(NamedTuple):
    """What a classifier sees of N prompts, and what they are."""

    pooled: npt.NDArray[np.float32]  # [N, hidden]
    text: list[str]
    workload: list[Workload]


def read_corpus(settings: Settings, name: str, layer: int) -> Prompts:
    tokenizer = load_tokenizer(resolve_checkpoint(settings))
    pooled, text, workload = [], [], []
    for sample in Corpus(settings.cache_dir, name):
        prompt = sample.features[: sample.response_start].unflatten(-1, (len(FEATURE_LAYERS), -1))
        pooled.append(pool(prompt[:, FEATURE_LAYERS.index(layer)].float().numpy()))
        text.append(tokenizer.decode(sample.ids[: sample.response_start]))
        workload.append(sample.domain)
    return Prompts(np.stack(pooled), text, workload)


def read_files(settings: Settings, files: list[str], layer: int) -> Iterator[tuple[str, Prompts]]:
    """JSON lines with a `prompt`, through the target. files: workload=path each."""
    if not files:
        return
    engine, tokenizer = build_target(synthesis_settings(16, 1024)), load_tokenizer(resolve_checkpoint(settings))
    for entry in files:
        workload, path = entry.split("=", 1)
        if workload not in WORKLOADS:
            raise typer.BadParameter(f"'{entry}': expected one of {', '.join(WORKLOADS)} before the =")
        prompts = [json.loads(line)["prompt"] for line in Path(path).read_text().splitlines()]
        pooled = []
        for prompt in prompts:
            turns = [{"role": "user", "content": prompt}]
            ids = np.array(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))[:1000]
            states = compute_features(engine, [np.append(ids, 0)]).unflatten(-1, (len(FEATURE_LAYERS), -1))
            pooled.append(pool(states[:, FEATURE_LAYERS.index(layer)].float().numpy()))
        yield Path(path).name, Prompts(np.stack(pooled), prompts, [workload] * len(prompts))


def fit(prompts: Prompts, layer: int, target_sha256: str) -> PromptClassifier:
    """Logistic regression on standardised means, folded into one linear map."""
    scaler = StandardScaler().fit(prompts.pooled)
    labels = [WORKLOADS.index(w) for w in prompts.workload]
    model = LogisticRegression(C=PENALTY, max_iter=2000).fit(scaler.transform(prompts.pooled), labels)
    weight = model.coef_ / scaler.scale_
    bias = model.intercept_ - weight @ scaler.mean_
    return PromptClassifier(target_sha256, layer, weight.astype(np.float32), bias.astype(np.float32))


def main(
    files: Annotated[list[str] | None, typer.Argument(help="More prompts to judge by: code=prompts.jsonl …")] = None,
    corpus: Annotated[str, typer.Option(help="What to learn from.")] = "train",
    held_out: Annotated[str, typer.Option(help="What to judge by.")] = "held_out",
    output: Annotated[Path, typer.Option(help="Weights.")] = ROUTER,
) -> None:
    settings = load()
    layer = read_config(resolve_checkpoint(settings)).layers
    sha256 = weights_sha256(resolve_checkpoint(settings))
    classifier = fit(read_corpus(settings, corpus, layer), layer, sha256)
    table = Table("prompts", "number", "classifier", "keyword rule")
    for name, prompts in (
        ("held out", read_corpus(settings, held_out, layer)),
        *read_files(settings, files or [], layer),
    ):
        means, texts = prompts.pooled, prompts.text
        learned = [
            WORKLOADS[int((classifier.weight @ m + classifier.bias).argmax())] == w
            for m, w in zip(means, prompts.workload, strict=True)
        ]
        by_rule = [route(t) == w for t, w in zip(texts, prompts.workload, strict=True)]
        table.add_row(name, str(len(means)), f"{np.mean(learned):.1%}", f"{np.mean(by_rule):.1%}")
    console.print(table)
    classifier.save(output)
    console.print(f"weights: {output}")


if __name__ == "__main__":
    typer.run(main)
