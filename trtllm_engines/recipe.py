"""What is built for one target: `recipes/NAME.yaml`, strict. An unknown key or a size that does not fit is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

RECIPES = Path(__file__).parent / "recipes"

Precision = Literal["bf16", "fp8"]
Family = Literal["llama", "qwen", "hunyuan"]


class RecipeError(ValueError):
    """A recipe is missing, wrong, or names a target that cannot be built."""


class Part(BaseModel):
    """Base of a recipe's parts; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Experts(Part):
    """A mixture of experts in place of the feed-forward network."""

    number: int = Field(gt=1)
    per_token: int = Field(ge=1, description="routed experts that a token passes")
    ffn: int = Field(gt=0, description="width of one expert")
    shared: int = Field(0, ge=0, description="experts that every token passes")
    normalised: bool = Field(False, description="weights of the chosen sum to one: `norm_topk_prob` of the checkpoint")
    dense_layers: int = Field(0, ge=0, description="first layers, which have a plain network instead")


class Geometry(Part):
    """Sizes of the target, as its Hugging Face config.json has them."""

    layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    ffn: int = Field(ge=0, description="width of the plain feed-forward network; 0 = all layers have experts")
    vocabulary: int = Field(gt=0)
    qk_norm: bool = Field(False, description="queries and keys are normalised per head")
    tied: bool = Field(False, description="embedding and head are one matrix")
    experts: Experts | None = None


class Drafter(Part):
    """A drafter that is trained for the target and built from its ONNX graphs."""

    kind: Literal["mtp", "eagle3", "dfly", "dflash", "dflare", "dspark"]
    depth: int = Field(ge=1, le=64, description="drafts a step, D")
    layers: int = Field(ge=1)
    ffn: int = Field(gt=0)
    feature_layers: tuple[int, ...] = Field(min_length=1, description="captured layers that it reads")
    markov_rank: int = Field(64, ge=1, description="of DSpark's Markov head")


class Limits(Part):
    """What the engine is built for; more of it cannot be asked at run time."""

    max_batch_size: int = Field(ge=1, description="sequences of one pass, B")
    max_length: int = Field(ge=8, description="tokens of a sequence, prompt and output")
    max_rows: int = Field(ge=1, description="packed rows of one pass: drafts, anchors and prompt chunks together")


class Recipe(Part):
    """How the engines of one target are built."""

    name: str
    checkpoint: str = Field(description="repository on the Hugging Face hub")
    revision: str = Field("main", description="branch, tag or commit of it")
    family: Family
    precisions: tuple[Precision, ...] = Field(min_length=1, description="what can be built; first = default")
    tensor_parallel: int = Field(1, ge=1, description="GPUs that share the target")
    geometry: Geometry
    captured_layers: tuple[int, ...] = Field(
        description="hidden states the engine gives out; `layers` = after the norm"
    )
    drafters: dict[str, Drafter] = Field(description="Triton model name -> drafter")
    limits: Limits
    kv_fraction: float = Field(gt=0, lt=1, description="share for KV blocks of the memory left by everything else")
    workspace_gb: float = Field(gt=0, description="allowance for activations, TensorRT and CUDA; assumed, not measured")
    missing: str = Field("", description="why it cannot be built; empty = it can")

    @property
    def depth(self) -> int:
        """Longest draft of any drafter, D."""
        return max(drafter.depth for drafter in self.drafters.values())

    @property
    def verify_rows(self) -> int:
        """Rows whose logits one pass may need: B (D + 1)."""
        return self.limits.max_batch_size * (self.depth + 1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        captured, layers = self.captured_layers, self.geometry.layers
        if captured != tuple(sorted(set(captured))) or not all(0 <= layer <= layers for layer in captured):
            raise ValueError(f"captured_layers {captured}: ascending ids between 0 and {layers} (after the norm)")
        for name, drafter in self.drafters.items():
            if unseen := set(drafter.feature_layers) - set(captured):
                raise ValueError(f"drafters.{name} reads layers {sorted(unseen)}, which captured_layers has not")
        if self.limits.max_rows < self.verify_rows:
            raise ValueError(
                f"limits.max_rows {self.limits.max_rows} is below the {self.verify_rows} rows of a full verify pass "
                f"({self.limits.max_batch_size} sequences x {self.depth + 1})"
            )
        if self.geometry.kv_heads % self.tensor_parallel:
            raise ValueError(f"{self.geometry.kv_heads} KV heads do not divide by {self.tensor_parallel} GPUs")
        return self

    def chosen(self, precision: str) -> Precision:
        """The precision asked for, the default for "". Raises RecipeError where the recipe has not got it."""
        for known in self.precisions:
            if precision in ("", known):
                return known
        raise RecipeError(
            f"recipe {self.name} has no precision '{precision}': choose from {', '.join(self.precisions)}"
        )

    def check_buildable(self) -> None:
        """Raise RecipeError where the recipe says that something is missing."""
        if self.missing:
            raise RecipeError(f"{self.name} cannot be built: {' '.join(self.missing.split())}")


def names() -> list[str]:
    """All targets that have a recipe."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load(name: str) -> Recipe:
    """Raises RecipeError naming the recipe and what is wrong with it."""
    path = RECIPES / f"{name}.yaml"
    if not path.is_file():
        raise RecipeError(f"there is no recipe '{name}': TARGET is one of {', '.join(names())}")
    try:
        return Recipe.model_validate({"name": name, **yaml.safe_load(path.read_text())})
    except ValidationError as error:
        raise RecipeError(f"recipe {path.name}: {error}") from error
