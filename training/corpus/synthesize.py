"""The target writes the corpus that drafters learn from, shard by shard; a run that was stopped goes on.

A shard depends on the seed, its number and the target, on nothing that was written before.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from python_backend.assembly.engines import build_target
from python_backend.checkpoints.checkpoint import resolve_checkpoint
from python_backend.checkpoints.tokenizer import end_ids, load_tokenizer
from python_backend.engine import TargetEngine
from python_backend.engines.torch_attention import JOINT_ROWS
from python_backend.files import appearing
from python_backend.settings import WORKLOADS, CoordinatorSettings, Settings, TargetSettings, load
from training.corpus.grammar import seed_lists_sha256
from training.corpus.report import Report
from training.corpus.requests import (
    CAP,
    FOLLOWED,
    LONG_CAP,
    MAGPIE,
    MIX,
    TEMPERATURES,
    Request,
    RequestSource,
    read_format,
)
from training.corpus.sampler import PREFILL_ROWS, Sampler
from training.corpus.shards import MANIFEST, Shard, corpus_folder, features_folder, save_features, to_shard
from training.corpus.stops import STOPS

FEATURE_LAYERS = (1, 8, 14, 20, 26, 27, 28, 30)  # of the embedded target; 30 is the final norm's output
HELD_OUT_TEMPERATURES = (0.0, 1.0)  # one shard each, over the same prompts


@dataclass(frozen=True)
class Job:
    """What a corpus is made of."""

    name: str
    seed: int
    held_out: bool
    tokens: int  # response tokens in all; of a training corpus
    shard_tokens: int  # response tokens with which a shard takes no more requests; of a training corpus
    prompts: int  # prompts of a domain; of a held-out corpus

    @property
    def shards(self) -> int:
        return len(HELD_OUT_TEMPERATURES) if self.held_out else math.ceil(self.tokens / self.shard_tokens)


class Writer:
    """Writes the shards of a job that are not there yet.

    requests: those of a shard, by its number.
    """

    def __init__(
        self,
        job: Job,
        cache_dir: Path,
        engine: TargetEngine,
        sampler: Sampler,
        requests: Callable[[int], Iterator[Request]],
    ) -> None:
        self.job, self.engine, self.sampler, self.requests = job, engine, sampler, requests
        self.folder = corpus_folder(cache_dir, job.name)
        self.features_folder = features_folder(cache_dir, job.name)

    def run(self, report: Report, writer: int = 0, writers: int = 1) -> None:
        """Write those shards that are not there. writer: of `writers` that share the work."""
        counts: Counter[str] = Counter()
        for index in range(writer, self.job.shards, writers):
            file = self.folder / f"shard-{index:04}.safetensors"
            counts += count(Shard.load(file) if file.is_file() else self.write_shard(index, file, report))
            report.shard(file.stem, counts)
            self.write_manifest()

    def write_shard(self, index: int, file: Path, report: Report) -> Shard:
        """Features first: a shard of tokens says that its features are whole."""
        enough = float("inf") if self.job.held_out else self.job.shard_tokens
        written = list(self.sampler.write(self.requests(index), enough, report.step))
        shard = to_shard(written, self.engine.describe().vocabulary_size)
        if self.engine.describe().feature_layers:
            save_features(torch.cat([w.features for w in written]), self.features_folder / file.name)
        shard.save(file)
        return shard

    def write_manifest(self) -> None:
        """Where the corpus comes from, and what there is of it."""
        about = self.engine.describe()
        shards = [Shard.load(file) for file in sorted(self.folder.glob("shard-*.safetensors"))]
        counts = sum(map(count, shards), start=Counter[str]())
        manifest: dict[str, Any] = {
            "job": asdict(self.job),
            "target": {
                "name": about.name,
                "weights_sha256": about.weights_sha256,
                "engine": f"{about.engine} {about.engine_version}, {about.dtype}",
                "feature_layers": about.feature_layers,
                "slots": about.slots,
                "max_length": about.max_length,
            },
            "mix": {
                "domains": MIX,
                "magpie": MAGPIE,
                "second_turn": FOLLOWED,
                "caps": [CAP, LONG_CAP],
                "temperatures": HELD_OUT_TEMPERATURES if self.job.held_out else [0.0, *TEMPERATURES],
                "seed_lists_sha256": seed_lists_sha256(),
            },
            "shards": len(shards),
            "counts": dict(sorted(counts.items())),
        }
        with appearing(self.folder / MANIFEST) as part:
            part.write_text(json.dumps(manifest, indent=2) + "\n")


def count(shard: Shard) -> Counter[str]:
    """Sequences, tokens, and response tokens by domain, temperature and stop."""
    counts = Counter({"sequences": len(shard), "tokens": len(shard.tokens)})
    for i, tokens in enumerate(shard.response_length.tolist()):
        counts["response_tokens"] += tokens
        counts[f"{WORKLOADS[shard.domain[i]]}_response_tokens"] += tokens
        counts["argmax_response_tokens"] += tokens if shard.temperature[i] == 0 else 0
        counts["magpie_sequences"] += int(shard.magpie[i])
        counts[f"stopped_by_{STOPS[shard.stop[i]]}"] += 1
    return counts


def synthesis_settings(slots: int, max_length: int, device: str = "cpu") -> Settings:
    """The served target, exact, with all that drafters read from it. A GPU writes in bfloat16, and captures nothing:
    `training.fit.teacher` computes that again in no time."""
    served = load()
    common = {"checkpoint": served.target.checkpoint, "device": device}
    target = (
        TargetSettings(engine="openvino", quantization="exact", feature_layers=FEATURE_LAYERS, **common)
        if device == "cpu"
        else TargetSettings(engine="torch", dtype="bfloat16", **common)
    )
    coordinator = CoordinatorSettings(max_sequences=slots, max_length=max_length)
    return served.model_copy(update={"target": target, "coordinator": coordinator, "drafters": {}})


def request_source(job: Job, tokenizer: Any) -> Callable[[int], Iterator[Request]]:
    """The requests of each shard of a job."""

    def of_shard(index: int) -> Iterator[Request]:
        if job.held_out:
            source = RequestSource(tokenizer, (job.seed,), held_out=True)
            return iter(source.evaluation(job.prompts, HELD_OUT_TEMPERATURES[index]))
        return RequestSource(tokenizer, (job.seed, index), held_out=False).endless()

    return of_shard


def build_writer(job: Job, settings: Settings) -> Writer:
    """Load the target and its tokenizer."""
    checkpoint = resolve_checkpoint(settings)
    tokenizer = load_tokenizer(checkpoint)
    engine = build_target(settings)
    control = frozenset(tokenizer.all_special_ids)
    chunk = PREFILL_ROWS if settings.target.device == "cpu" else JOINT_ROWS
    sampler = Sampler(engine, read_format(tokenizer), end_ids(checkpoint), control, chunk)
    return Writer(job, settings.cache_dir, engine, sampler, request_source(job, tokenizer))


def main(
    tokens: Annotated[int, typer.Option(min=1, help="Response tokens in all.")] = 3_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Other seeds give other text.")] = 1,
    name: Annotated[str, typer.Option(help="Folder below the cache; by default train or held_out.")] = "",
    held_out: Annotated[bool, typer.Option("--held-out", help="From the other side of the split.")] = False,
    prompts: Annotated[int, typer.Option(min=1, help="Held out: prompts of each domain.")] = 80,
    shard_tokens: Annotated[int, typer.Option(min=1, help="Response tokens of a shard.")] = 64_000,
    slots: Annotated[int, typer.Option(min=1, help="Conversations at once.")] = 128,
    max_length: Annotated[int, typer.Option(min=64, help="Tokens of a conversation.")] = 512,
    device: Annotated[str, typer.Option(help="cpu, cuda")] = "cpu",
    writers: Annotated[int, typer.Option(min=1, help="Processes that share the shards; for a GPU.")] = 1,
    writer: Annotated[int, typer.Option(min=-1, hidden=True)] = -1,
) -> None:
    """Write what is missing of a corpus."""
    if writers > 1 and writer < 0:
        commands = [[sys.executable, *sys.orig_argv[1:], "--writer", str(i)] for i in range(writers)]
        raise typer.Exit(max(p.wait() for p in [subprocess.Popen(c) for c in commands]))
    job = Job(name or ("held_out" if held_out else "train"), seed, held_out, tokens, shard_tokens, prompts)
    settings = synthesis_settings(slots, max_length, device)
    console = Console()
    with console.status("loading the target"):
        built = build_writer(job, settings)
    with Report(console, 0 if held_out else tokens // writers) as report:
        built.run(report, max(writer, 0), writers)


if __name__ == "__main__":
    typer.run(main)
