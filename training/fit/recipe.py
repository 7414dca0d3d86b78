"""A training recipe: one strict YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from python_backend.drafters.config import Head, Kind
from python_backend.settings import Workload
from training.fit.losses import LossName, Weighting


class Section(BaseModel):
    """Base of a recipe's parts; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Stage(Section):
    """A stretch of the training with a loss and a draft length of its own."""

    share: float = Field(gt=0, le=1, description="of all steps")
    depth: int = Field(ge=1, description="drafts of a chain")
    loss: LossName = "lk"
    weighting: Weighting = "uniform"


class Recipe(Section):
    """What is trained, on what, and for how long."""

    kind: Kind
    depth: int = Field(ge=1, description="drafts of a chain when it is served")
    layers: int = Field(1, ge=1)
    head: Head | None = Field(None, description="of a block drafter, instead of its kind's own")
    feature_layers: tuple[int, ...] = Field(
        min_length=1, description="captured layers; the number of layers: the final norm"
    )
    copy_layers: tuple[int, ...] = Field((), description="target layers that the draft layers start from")
    qk_norm: bool = True
    draft_vocabulary_size: int = Field(16384, ge=1)
    stages: tuple[Stage, ...] = Field(min_length=1)
    steps: int = Field(ge=1)
    tokens_per_step: int = Field(512, ge=1, description="padded rows of a step")
    learning_rate: float = Field(gt=0)
    warm_up: int = Field(40, ge=1, description="steps")
    decay: float = Field(0.3, ge=0, le=1, description="last share of the steps, in which the rate falls to a tenth")
    weight_decay: float = 0.01
    anchors: int = Field(24, ge=1, description="blocks of a sequence at the full depth; more where they are shorter")
    off_path_weight: float = Field(0.25, description="of recurrent chains whose earlier draft already missed")
    domains: tuple[Workload, ...] = Field((), description="of the corpus that it learns from; none named: all")
    seed: int = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if abs(sum(s.share for s in self.stages) - 1) > 1e-6:
            raise ValueError(f"the stages' shares sum to {sum(s.share for s in self.stages)}, expected 1")
        if self.copy_layers and len(self.copy_layers) != self.layers:
            raise ValueError(f"copy_layers names {len(self.copy_layers)} layers, the drafter has {self.layers}")
        if deeper := [s.depth for s in self.stages if s.depth > self.depth]:
            raise ValueError(f"a stage has depth {deeper[0]}, the drafter's is {self.depth}")
        return self

    def stage_at(self, progress: float) -> Stage:
        """The stage after this share of the steps."""
        end = 0.0
        for stage in self.stages:
            end += stage.share
            if progress < end - 1e-9:
                return stage
        return self.stages[-1]

    def rate_at(self, step: int, progress: float) -> float:
        """Warm-up, constant, then linear decay to a tenth: the constant part can be prolonged later."""
        falling = max(0.0, (progress - (1 - self.decay)) / self.decay) if self.decay else 0.0
        return self.learning_rate * min(1.0, (step + 1) / self.warm_up) * (1 - 0.9 * falling)


def read_recipe(path: Path, **overrides: object) -> Recipe:
    """Raises pydantic.ValidationError naming the key and what it expects."""
    return Recipe.model_validate(yaml.safe_load(path.read_text()) | overrides)
