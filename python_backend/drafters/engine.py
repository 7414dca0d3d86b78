"""Serves a drafter network: context that grows with the committed text, and drafts for the whole batch at once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.calibration import Calibration
from python_backend.drafters.context import Context
from python_backend.drafters.drafting import Drafted, always
from python_backend.drafters.pick import pick_for
from python_backend.drafters.quantise import quantise
from python_backend.drafters.serving import Append, BlockServing, RecurrentServing
from python_backend.drafters.weights import load
from python_backend.engines.checkpoint import weights_sha256
from python_backend.protocol import NO_TOKEN, Array, Description, DrafterResult, DrafterStep, row_starts


class NetworkDrafter:
    """A `DrafterEngine` over a folder with trained weights."""

    def __init__(
        self,
        name: str,
        folder: Path,
        checkpoint: Path,
        slots: int,
        max_length: int,
        device: str = "cpu",
        eight_bit: bool = True,
        least_confidence: float = 0.0,
    ) -> None:
        """folder: the drafter's. checkpoint: the target's. eight_bit: round the weights on a CPU. least_confidence: a
        chain that is drafted one by one ends where it is less likely than this to be accepted so far; on a CPU.

        Raises CheckpointError where the weights are missing or belong to another target.
        """
        network = load(folder, checkpoint).to(device).eval()
        self.name, self.device, self.config = name, device, network.config
        self.sha256 = weights_sha256(folder)
        dtype, self.precision = torch.float32, "float32"
        if device != "cpu":
            dtype, self.precision = torch.bfloat16, "bfloat16"
            network.to(dtype)
        elif eight_bit:
            self.precision = "int8"
            quantise(network)
        self.context = Context(self.config, self.config.layers, slots, max_length, dtype, device)
        self.serving = (
            BlockServing(network, self.context)
            if isinstance(network, BlockDrafter)
            else RecurrentServing(network, self.context)
        )
        self.calibration = Calibration.read(folder)
        self.least_confidence = least_confidence if device == "cpu" else 0.0

    def describe(self) -> Description:
        return Description(
            name=self.name,
            role="drafter",
            engine="torch",
            engine_version=torch.__version__,
            dtype=self.precision,
            device=self.device,
            weights_sha256=self.sha256,
            vocabulary_size=self.config.vocabulary_size,
            slots=self.context.slots,
            max_length=self.context.max_length,
            feature_layers=self.config.feature_layers,
            feature_size=self.config.feature_size,
            max_depth=self.config.depth,
            target_sha256=self.config.target_sha256,
        )

    @torch.inference_mode()
    def step(self, step: DrafterStep) -> DrafterResult:
        """Append context, then draft. Raises ProtocolError where the step breaks the contract."""
        self.context.begin(step)
        asked = int(step.depth[0])
        ids = np.full((len(step.slot), asked), NO_TOKEN, dtype=np.int32)
        confidence = np.zeros((len(step.slot), asked), dtype=np.float32)
        order = np.argsort(step.slot)
        self.serving.append(self._new_rows(step, order))
        drafting, depth = order[step.anchor[order] != NO_TOKEN], min(asked, self.config.depth)
        if depth and len(drafting):
            drafted = self._draft(step, drafting, depth)
            drawn = drafted.tokens.shape[1]
            ids[drafting, :drawn] = drafted.tokens.cpu().numpy()
            confidence[drafting, :drawn] = self._confidence(drafted.probability, step.temperature[drafting])
        return DrafterResult(draft_ids=ids, confidence=confidence)

    def release(self, slot: Array) -> None:
        self.context.release(slot)

    def _confidence(self, probability: Tensor, temperature: Array) -> Array:
        """[N, k] of drafts whose probabilities are given."""
        own: Array = probability.float().cpu().numpy()
        return self.calibration(own, temperature) if self.calibration else own

    def _new_rows(self, step: DrafterStep, order: Array) -> Append:
        """The step's context in the order of its slots."""
        starts = row_starts(step.context_count)
        rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order])
        return Append(
            slot=step.slot[order],
            past=step.past_length[order],
            count=step.context_count[order],
            # as_tensor: a drafter in the target's process finds them on the device, see engines/hosted.py
            features=torch.as_tensor(step.features)[torch.from_numpy(rows)].to(self.device, self.context.dtype),
            following=torch.from_numpy(step.token_ids[rows].astype(np.int64)).to(self.device),
        )

    def _draft(self, step: DrafterStep, members: Array, depth: int) -> Drafted:
        slot = step.slot[members]
        pick = pick_for(
            step.temperature[members],
            step.top_k[members],
            step.top_p[members],
            step.seed[members],
            self.context.stored[slot].astype(np.int64),
            self.config.vocabulary_size,
        )
        anchor = torch.from_numpy(step.anchor[members].astype(np.int64)).to(self.device)
        go_on = partial(self._can_pay, step.temperature[members]) if self.least_confidence else always
        return self.serving.draft(slot, anchor, depth, pick, go_on)

    def _can_pay(self, temperature: Array, probabilities: list[Tensor]) -> bool:
        """Whether any chain is likely enough to be accepted so far."""
        reached = self._confidence(torch.stack(probabilities, 1), temperature).prod(1)
        return bool((reached >= self.least_confidence).any())
