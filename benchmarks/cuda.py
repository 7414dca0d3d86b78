"""What the PyTorch engine costs on a GPU: steps, plain decoding, draft calls, and how near the memory's speed that is.

The embedded model, in float32 and in bfloat16. What the tokens are does not matter to the time.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track

from benchmarks import cuda_record
from benchmarks.cuda_record import DraftTime, EngineTimes, Record, Spread, StepTime
from benchmarks.peers import target as decoding
from benchmarks.peers.worker import random_prompts
from build_scripts.drafter_weights import Drafter, find_drafters
from python_backend.assembly.hosted import FeatureStore, HostedDrafter, HostingTarget
from python_backend.checkpoints.checkpoint import resolve_checkpoint
from python_backend.checkpoints.decoder import load_weights, read_config
from python_backend.checks import feature_columns
from python_backend.coordinator.profile import verify_step
from python_backend.drafters.engine import NetworkDrafter
from python_backend.engine import TargetEngine
from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Context, DrafterStep
from python_backend.settings import CoordinatorSettings, TargetSettings, load

Dtype = Literal["float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
WARM_UPS = 2
PROMPT = 16  # tokens; plain decoding goes on from there
NEW_ROWS = 2  # context of a draft call that its drafter has not seen: about what a step commits
ROOM = 64  # tokens of a slot beyond the context
TOGETHER = 16  # prompts that are prefilled in one pass


class Bench:
    """The measurements on one device."""

    def __init__(self, device: str, sequences: list[int], rows: list[int], context: int, repeats: int) -> None:
        self.device, self.sequences, self.rows = device, sequences, rows
        self.context, self.repeats = context, repeats
        self.folder = resolve_checkpoint(load())
        self.slots = max(sequences)
        self.limits = CoordinatorSettings(max_sequences=self.slots, max_length=context + ROOM)
        vocabulary = read_config(self.folder).vocabulary_size
        self.tokens = np.random.default_rng(0).integers(0, vocabulary, size=self.slots * max(*rows, NEW_ROWS))

    def run(self, steps: int, scratch: Path) -> Record:
        """steps: of plain decoding. scratch: for the weights of drafters that are not shipped."""
        drafters = find_drafters(self.folder, scratch)
        copied = self.bytes_per_s()
        engines = tuple(self.times(dtype, steps, drafters) for dtype in DTYPES)
        return Record(
            device=torch.cuda.get_device_name(self.device) if self.on_gpu else self.device,
            torch=torch.__version__,
            cuda=torch.version.cuda or "none",
            driver=driver_version() if self.on_gpu else "none",
            date=datetime.now(UTC).date().isoformat(),
            context=self.context,
            bytes_per_s=copied,
            engines=engines,
        )

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    def times(self, dtype: Dtype, steps: int, drafters: dict[str, Drafter]) -> EngineTimes:
        return EngineTimes(
            dtype=dtype,
            weight_bytes=self.weight_bytes(dtype),
            steps=self.steps(engine := self.engine(dtype, ())),
            decoding={
                count: count / decoding.measure(engine, random_prompts(count, PROMPT), steps) * 1e3
                for count in track(self.sequences, f"{dtype}: plain decoding")
            },
            drafts=self.drafts(dtype, drafters),
        )

    def engine(self, dtype: Dtype, feature_layers: tuple[int, ...]) -> TorchEngine:
        target = TargetSettings(device=self.device, dtype=dtype, feature_layers=feature_layers)
        return TorchEngine(self.folder, target, self.limits)

    def fill(self, target: TargetEngine) -> None:
        """Prefill every slot with the context."""
        for first in range(0, self.slots, TOGETHER):
            slots = np.arange(first, min(first + TOGETHER, self.slots), dtype=np.int32)
            target.step(decoding.make_step(slots, 0, random_prompts(len(slots), self.context)))

    def steps(self, engine: TorchEngine) -> tuple[StepTime, ...]:
        self.fill(engine)
        shapes = [(count, rows) for rows in self.rows for count in self.sequences]
        found = []
        for count, rows in track(shapes, f"{engine.target.dtype}: verify passes"):
            step = verify_step(count, count * (rows - 1), self.context, self.tokens)
            call = partial(engine.step, step)
            spread = self.spread(call)
            found.append(StepTime(sequences=count, rows=rows, ms=spread, kernel_ms=self.kernel_ms(call)))
        return tuple(found)

    def drafts(self, dtype: Dtype, drafters: dict[str, Drafter]) -> tuple[DraftTime, ...]:
        """Draft calls of networks in the target's process, on features that stay on the device."""
        length = self.limits.max_length
        networks = {
            name: NetworkDrafter(name, drafter.folder, self.folder, self.slots, length, self.device)
            for name, drafter in drafters.items()
        }
        layers = sorted({layer for network in networks.values() for layer in network.config.feature_layers})
        engine, store = self.engine(dtype, tuple(layers)), FeatureStore(self.slots)
        self.fill(HostingTarget(engine, store))
        hosted = {
            name: HostedDrafter(network, store, feature_columns(engine.describe(), network.describe()))
            for name, network in networks.items()
        }
        for drafter in hosted.values():  # all of them, before a later round makes the store forget the first rows
            drafter.step(self.draft_step(self.slots, 0, self.context, 0))
        found = []
        for name, network in networks.items():
            depth = network.config.depth
            for count in track(self.sequences, f"{dtype}: {name}"):
                step = self.draft_step(count, self.context - NEW_ROWS, NEW_ROWS, depth)
                spread = self.spread(partial(hosted[name].step, step))
                trained = drafters[name].trained
                found.append(DraftTime(drafter=name, trained=trained, depth=depth, sequences=count, ms=spread))
        return tuple(found)

    def draft_step(self, count: int, past: int, rows: int, depth: int) -> DrafterStep:
        """Greedy. The features are found in the store."""
        texts = np.resize(self.tokens, (count, rows)).tolist()
        return DrafterStep.of([Context(slot, past, text) for slot, text in enumerate(texts)], depth)

    def weight_bytes(self, dtype: Dtype) -> int:
        """What a step reads at least: every matrix once, and of an embedding that is no head next to nothing."""
        tied = read_config(self.folder).tied_head
        counted = [w for n, w in load_weights(self.folder).items() if tied or n != "model.embed_tokens.weight"]
        size: int = getattr(torch, dtype).itemsize
        return size * sum(w.numel() for w in counted)

    def bytes_per_s(self) -> float:
        """The fastest copy of a gigabyte within the device, bytes read and written."""
        source = torch.ones(1 << 30 if self.on_gpu else 1 << 26, dtype=torch.uint8, device=self.device)
        copy = torch.empty_like(source)
        return 2 * source.nbytes / self.spread(lambda: copy.copy_(source)).low * 1e3

    def spread(self, call: Callable[[], object]) -> Spread:
        """ms until the device is done."""
        taken = []
        for _ in range(WARM_UPS + self.repeats):
            start = time.perf_counter()
            call()
            if self.on_gpu:
                torch.cuda.synchronize(self.device)
            taken.append((time.perf_counter() - start) * 1e3)
        timed = taken[WARM_UPS:]
        return Spread(median=statistics.median(timed), low=min(timed), high=max(timed))

    def kernel_ms(self, call: Callable[[], object], calls: int = 3) -> float | None:
        """Time of a call in which the device works, by torch's profiler; None where there is no GPU or it saw none."""
        if not self.on_gpu:
            return None
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(calls):
                call()
            torch.cuda.synchronize(self.device)
        events = [event for event in profile.key_averages() if event.device_type.name == "CUDA"]
        busy: float = sum(event.self_device_time_total for event in events)
        return busy / calls / 1e3 or None


def driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, check=True, capture_output=True, text=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(
    device: Annotated[str, typer.Option(help="cuda, cuda:1; cpu tries the program itself out")] = "cuda",
    record: Annotated[Path | None, typer.Option(help="JSON file for what is measured")] = None,
    write: Annotated[Path | None, typer.Option(help="measure nothing: put such a file into docs/")] = None,
    sequences: Annotated[str, typer.Option(help="sequences of a step")] = "1,4,16,64,256",
    rows: Annotated[str, typer.Option(help="rows of each sequence")] = "1,4,8",
    context: Annotated[int, typer.Option(help="committed rows of every sequence in a step")] = 256,
    repeats: Annotated[int, typer.Option(help="timed calls; the median counts")] = 9,
    steps: Annotated[int, typer.Option(help="of plain decoding")] = 40,
) -> None:
    """Measure the PyTorch engine on a GPU: about half a minute."""
    console = Console(width=150)
    if write is not None:
        cuda_record.write(Record.model_validate_json(write.read_text()))
        return
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        console.print(f"[red]device is {device}, and torch {torch.__version__} sees no CUDA device")
        raise typer.Exit(1)
    with TemporaryDirectory() as scratch:
        found = Bench(device, numbers(sequences), numbers(rows), context, repeats).run(steps, Path(scratch))
    if record is not None:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(found.model_dump_json(indent=1) + "\n")
    console.print(cuda_record.summary(found))
    for grid in cuda_record.grids(found).values():
        console.print(grid.rich())


if __name__ == "__main__":
    typer.run(main)
