"""Fit the classifier that decides chat, code or math from the target's view of a prompt: `make fit-router`.

It learns from the corpus, whose prompts say what they are; it is judged, beside the keyword rule, on held-out prompts
and on any files of prompts that are given as `workload=file`.
"""

from __future__ import annotations

import json
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from python_backend.assembly.engines import build_target
from python_backend.checkpoints.checkpoint import resolve_checkpoint, weights_sha256
from python_backend.checkpoints.decoder import read_config
from python_backend.checkpoints.tokenizer import load_tokenizer
from python_backend.coordinator.router import PromptClassifier, pool, route
from python_backend.engine import TargetEngine
from python_backend.protocol import Array
from python_backend.settings import ROOT, WORKLOADS, Settings, Workload, load
from training.corpus.shards import compute_features
from training.corpus.synthesize import FEATURE_LAYERS, synthesis_settings
from training.fit.batches import read_texts
from training.fit.train import open_corpus

ROUTER = ROOT / "python_backend" / "coordinator" / "router.safetensors"
LONGEST = 1000  # tokens of a prompt that are looked at
PENALTY = 0.05  # inverse strength of the ridge: there are more dimensions than kinds of prompts

console = Console()


class Prompts(NamedTuple):
    """What a classifier sees of N prompts, and what they are."""

    pooled: npt.NDArray[np.float32]  # [N, hidden]
    text: list[str]
    workload: list[Workload]


class Reader:
    """Shows prompts to the target."""

    def __init__(self, settings: Settings, layer: int) -> None:
        """layer: whose states are looked at."""
        self.settings, self.layer = settings, layer
        self.tokenizer = load_tokenizer(resolve_checkpoint(settings))

    @cached_property
    def engine(self) -> TargetEngine:
        """Reads prompts that are in no corpus."""
        reading = synthesis_settings(16, LONGEST + 1)
        return build_target(
            reading.model_copy(update={"target": reading.target.model_copy(update={"feature_layers": (self.layer,)})})
        )

    def corpus(self, name: str, most: int) -> Prompts:
        """The first `most` prompts of a corpus, with the states that were captured for training."""
        samples = list(islice(open_corpus(self.settings, name), most))
        states = [t.states for t in read_texts(samples, FEATURE_LAYERS, (), self.layer)]
        means = [pool(rows[: s.response_start].float().numpy()) for rows, s in zip(states, samples, strict=True)]
        texts = [self.tokenizer.decode(s.ids[: s.response_start]) for s in samples]
        return Prompts(np.stack(means), texts, [s.domain for s in samples])

    def file(self, entry: str, most: int) -> Prompts:
        """JSON lines with a `prompt`, the first `most`. entry: workload=path."""
        workload, path = entry.split("=", 1)
        if workload not in WORKLOADS:
            raise typer.BadParameter(f"'{entry}': expected one of {', '.join(WORKLOADS)} before the =")
        texts = [json.loads(line)["prompt"] for line in Path(path).read_text().splitlines()[:most]]
        chats = [[{"role": "user", "content": text}] for text in texts]
        ids = self.tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)
        return Prompts(self.pooled([np.array(i) for i in ids], Path(path).name), texts, [workload] * len(texts))

    def pooled(self, prompts: list[Array], name: str) -> npt.NDArray[np.float32]:
        """[N, hidden]"""
        fed = [np.append(ids[:LONGEST], 0) for ids in prompts]  # the last token's state is not read
        return np.stack(
            [
                pool(compute_features(self.engine, [ids]).float().numpy())
                for ids in track(fed, name, console=console, transient=True)
            ]
        )


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
    most: Annotated[int, typer.Option(help="Prompts of it, and of each file.")] = 3000,
    held_out: Annotated[str, typer.Option(help="What to judge by.")] = "held_out",
    output: Annotated[Path, typer.Option(help="Weights.")] = ROUTER,
) -> None:
    settings = load()
    layer = read_config(resolve_checkpoint(settings)).layers
    sha256 = weights_sha256(resolve_checkpoint(settings))
    reader = Reader(settings, layer)
    classifier = fit(reader.corpus(corpus, most), layer, sha256)
    table = Table("prompts", "number", "classifier", "keyword rule")
    for name, prompts in (
        ("held out", reader.corpus(held_out, most)),
        *((entry.partition("=")[2], reader.file(entry, most)) for entry in files or []),
    ):
        means, texts = prompts.pooled, prompts.text
        learned = [
            WORKLOADS[int((classifier.weight @ m + classifier.bias).argmax())] == w
            for m, w in zip(means, prompts.workload, strict=True)
        ]
        by_rule = [route(t) == w for t, w in zip(texts, prompts.workload, strict=True)]
        table.add_row(Path(name).name, str(len(means)), f"{np.mean(learned):.1%}", f"{np.mean(by_rule):.1%}")
    console.print(table)
    classifier.save(output)
    console.print(f"weights: {output}")


if __name__ == "__main__":
    typer.run(main)
