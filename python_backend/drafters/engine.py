"""Serves a drafter network: context that grows with the committed text, and drafts for the whole batch at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.drafters.calibration import Calibration
from python_backend.drafters.context import Context
from python_backend.drafters.drafting import Drafted, Started, walk
from python_backend.drafters.pick import Pick, pick_for
from python_backend.drafters.session import Append, Asked, Session
from python_backend.drafters.sketch import load_sketch
from python_backend.drafters.torch_session import torch_session
from python_backend.drafters.weights import load
from python_backend.engines.hardware import hardware_of
from python_backend.protocol import NO_TOKEN, Array, Description, DrafterResult, DrafterStep, row_starts
from python_backend.settings import DrafterEngineName


class SessionDrafter:
    """A `DrafterEngine` over a session: what is asked and answered, whatever runs the graphs."""

    def __init__(
        self,
        name: str,
        context: Context,
        session: Session,
        sha256: str,
        calibration: Calibration | None,
        device: str = "cpu",
        least_confidence: float = 0.0,
    ) -> None:
        """sha256: of the weights. least_confidence: a chain that is drafted one by one ends where it is less likely
        than this to be accepted so far; to look at that, a GPU would have to be waited for."""
        self.name, self.device, self.sha256 = name, device, sha256
        self.config, self.context, self.session = context.config, context, session
        self.calibration, self.least_confidence = calibration, least_confidence

    def describe(self) -> Description:
        return Description(
            name=self.name,
            role="drafter",
            engine=self.session.engine,
            engine_version=self.session.engine_version,
            dtype=self.session.dtype,
            device=self.device,
            hardware=hardware_of(self.device),
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
        wide = int(step.depth[0])
        ids = np.full((len(step.slot), wide), NO_TOKEN, dtype=np.int32)
        confidence = np.zeros((len(step.slot), wide), dtype=np.float32)
        order, depth = np.argsort(step.slot), min(wide, self.config.depth)
        new, member = _new_rows(step, order), np.flatnonzero(step.anchor[order] != NO_TOKEN)
        if depth and len(member):
            drafting = order[member]
            pick = self._pick(step, drafting)
            asked = Asked(member, step.anchor[drafting], depth, pick.candidates)
            drafted = self._walk(self.session.start(new, asked), asked.depth, pick, step.temperature[drafting])
            drawn = drafted.tokens.shape[1]
            ids[drafting, :drawn] = drafted.tokens.cpu().numpy()
            confidence[drafting, :drawn] = self._confidence(drafted.probability, step.temperature[drafting])
        else:
            self.session.append(new)
        return DrafterResult(draft_ids=ids, confidence=confidence)

    def release(self, slot: Array) -> None:
        self.context.release(slot)

    def _pick(self, step: DrafterStep, members: Array) -> Pick:
        return pick_for(
            step.temperature[members],
            step.top_k[members],
            step.top_p[members],
            step.seed[members],
            self.context.stored[step.slot[members]].astype(np.int64),
            self.config.vocabulary_size,
        )

    def _walk(self, started: Started, depth: int, pick: Pick, temperature: Array) -> Drafted:
        if not self.least_confidence:
            return walk(started, depth, pick)
        reached: list[Tensor] = []  # probability of each draft so far

        def can_pay(probability: Tensor) -> bool:
            """Whether any chain is likely enough to be accepted so far."""
            reached.append(probability)
            chains = self._confidence(torch.stack(reached, 1), temperature).prod(1)
            return bool((chains >= self.least_confidence).any())

        return walk(started, depth, pick, can_pay)

    def _confidence(self, probability: Tensor, temperature: Array) -> Array:
        """[N, k] of drafts whose probabilities are given."""
        own: Array = np.nan_to_num(probability.float().cpu().numpy(), nan=0.0)  # of scores that are no numbers
        return self.calibration(own, temperature) if self.calibration else own


class NetworkDrafter(SessionDrafter):
    """Over a folder with trained weights."""

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
        engine: DrafterEngineName = "auto",
    ) -> None:
        """folder: the drafter's. checkpoint: the target's. eight_bit: round the weights, and look for tokens with a
        sketch of the head where the folder has one; OpenVINO alone. engine: by default OpenVINO on a CPU, else torch.

        Raises CheckpointError where the weights are missing or belong to another target, EngineError for another
        release of OpenVINO than the pinned one.
        """
        network = load(folder, checkpoint).eval()
        context = Context(network.config, slots, max_length)
        if engine == "openvino" or (engine == "auto" and device == "cpu"):
            from python_backend.drafters.openvino_session import openvino_session  # only where it serves

            sketch = load_sketch(folder, network.head) if eight_bit else None
            session = openvino_session(network, slots, context.room, eight_bit, sketch)
        else:
            session = torch_session(network, slots, context.room, device)
        calibration = Calibration.read(folder)
        least = least_confidence if device == "cpu" else 0.0
        super().__init__(name, context, session, weights_sha256(folder), calibration, device, least)


def _new_rows(step: DrafterStep, order: Array) -> Append:
    """The step's context in the order of its slots."""
    features: Any = step.features  # a tensor where a target in the process left it on the device
    following = step.token_ids
    if (np.diff(order) != 1).any():
        starts = row_starts(step.context_count)
        rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order])
        features = features[torch.from_numpy(rows) if isinstance(features, Tensor) else rows]
        following = following[rows]
    return Append(step.slot[order], step.past_length[order], step.context_count[order], features, following)
