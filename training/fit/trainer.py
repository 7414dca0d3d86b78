"""The training loop: one network, one recipe, checkpoints that resume exactly."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from python_backend.checkpoints.decoder import DecoderConfig
from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.network import TargetParts
from python_backend.drafters.recurrent import RecurrentDrafter
from python_backend.drafters.weights import build_network
from training.fit.batches import Batch, Text, collate, epochs
from training.fit.objective import Tally, backward
from training.fit.recipe import Recipe, Stage
from training.fit.unroll import Unrolled, unroll_block, unroll_recurrent
from training.fit.warm_start import copy_target_layers

LOG_EVERY = 50  # steps
CHECKPOINT_S = 120.0
CLIP = 1.0

Network = BlockDrafter | RecurrentDrafter


@dataclass
class Progress:
    """How far a run has come; saved with its checkpoint."""

    step: int = 0
    tokens: int = 0  # response and prompt rows seen
    seconds: float = 0.0  # spent in steps
    history: list[dict[str, float]] = field(default_factory=list)


def drafter_config(recipe: Recipe, target: DecoderConfig, target_sha256: str) -> DrafterConfig:
    named = ("kind", "depth", "layers", "head", "feature_layers", "qk_norm", "draft_vocabulary_size")
    return DrafterConfig.for_target(target, target_sha256, **{name: getattr(recipe, name) for name in named})


def fresh_network(
    recipe: Recipe,
    config: DrafterConfig,
    target: TargetParts,
    weights: dict[str, torch.Tensor],
    draft_ids: torch.Tensor,
    feature_scale: torch.Tensor,
) -> Network:
    """A network as the recipe starts it. weights: the target's own, for layers that are copied."""
    torch.manual_seed(recipe.seed)
    network = build_network(config, target, draft_ids, feature_scale)
    if recipe.copy_layers:
        assert isinstance(network, BlockDrafter), f"copy_layers is for block drafters, not for {recipe.kind}"
        copy_target_layers(network, recipe.copy_layers, weights)
    return network


class Trainer:
    """Trains one network. Two runs of the same recipe over the same texts take the same steps, resumed or not."""

    def __init__(self, network: Network, recipe: Recipe, texts: Sequence[Text], device: str) -> None:
        self.network, self.recipe, self.texts, self.device = network.to(device), recipe, texts, device
        self.progress = Progress()
        decayed = [p for p in network.parameters() if p.ndim > 1]
        others = [p for p in network.parameters() if p.ndim <= 1]
        groups = [
            {"params": decayed, "weight_decay": recipe.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=True)
        self.generator = torch.Generator()

    def run(
        self, folder: Path | None = None, report: Callable[[Progress, dict[str, float]], Any] = lambda *_: None
    ) -> None:
        """Take the steps that are left; checkpoint on the way and at the end. report: after every log line. Without a
        folder nothing is kept."""
        saved, tally = time.monotonic(), Tally()
        for texts in self._batches():
            start = time.monotonic()
            share = self.progress.step / self.recipe.steps
            stage = self.recipe.stage_at(share)
            self._step(texts, stage, share, tally)
            self.progress.step += 1
            self.progress.tokens += sum(len(text.ids) - 1 for text in texts)
            self.progress.seconds += time.monotonic() - start
            if self.progress.step % LOG_EVERY == 0:
                entry = {
                    "step": self.progress.step,
                    "seconds": round(self.progress.seconds, 1),
                    "tokens": self.progress.tokens,
                    "depth": stage.depth,
                    "rate": self.recipe.rate_at(self.progress.step, share),
                } | tally.summary()
                self.progress.history.append(entry)
                report(self.progress, entry)
                tally = Tally()
            if folder and time.monotonic() - saved > CHECKPOINT_S:
                self.save(folder)
                saved = time.monotonic()
        if folder:
            self.save(folder)

    def _batches(self) -> Iterator[list[Text]]:
        endless = epochs(self.texts, self.recipe.tokens_per_step, self.recipe.seed, skip=self.progress.step)
        for _, texts in zip(range(self.progress.step, self.recipe.steps), endless, strict=False):
            yield texts

    def _step(self, texts: Sequence[Text], stage: Stage, share: float, tally: Tally) -> None:
        """One update."""
        batch = collate(texts, self.network.config.hidden_size, self.device)
        unrolled = self._unroll(batch, stage)
        if unrolled.valid.any():
            backward(self.network, batch, unrolled, stage, tally)
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.rate_at(self.progress.step, share)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def _unroll(self, batch: Batch, stage: Stage) -> Unrolled:
        if isinstance(self.network, RecurrentDrafter):
            return unroll_recurrent(self.network, batch, stage.depth, self.recipe.off_path_weight)
        self.generator.manual_seed(self.recipe.seed * 1_000_003 + self.progress.step)
        anchors = self.recipe.anchors * (self.recipe.depth + 1) // (stage.depth + 1)
        return unroll_block(self.network, batch, stage.depth, anchors, self.generator)

    def save(self, folder: Path) -> None:
        """Write the state of the run, replacing the last one only once it is whole."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": vars(self.progress),
            "recipe": self.recipe.model_dump(mode="json"),
        }
        torch.save(state, folder / "state.new")
        (folder / "state.new").rename(folder / "state.pt")
        write_history(self.progress.history, folder / "curve.csv")

    def resume(self, folder: Path) -> bool:
        """Go on from a folder's checkpoint. False where there is none. Raises ValueError for another recipe's."""
        if not (folder / "state.pt").is_file():
            return False
        state = torch.load(folder / "state.pt", map_location=self.device, weights_only=True)
        recipe = self.recipe.model_dump(mode="json")
        if changed := [k for k in recipe if recipe[k] != state["recipe"].get(k)]:
            raise ValueError(
                f"'{folder}' is a run of another recipe: {changed[0]} was {state['recipe'].get(changed[0])}, "
                f"now {recipe[changed[0]]}; give another --name, or start from its weights with --initial"
            )
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        return True


def write_history(history: list[dict[str, float]], path: Path) -> None:
    """All log lines as CSV; a column that a line lacks stays empty."""
    columns = list(dict.fromkeys(key for entry in history for key in entry))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(history)
