"""What a drafter network is, in numbers: `config.json` beside its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:  # the module behind it imports torch, and the coordinator reads configurations without
    from python_backend.checkpoints.decoder import DecoderConfig

CONFIG, WEIGHTS = "config.json", "model.safetensors"

OF_TARGET = (
    "hidden_size",
    "intermediate_size",
    "heads",
    "kv_heads",
    "head_dim",
    "norm_epsilon",
    "rope_scale",
    "vocabulary_size",
    "max_position",
)

Kind = Literal["mtp", "eagle3", "dfly", "dflash", "dflare", "dspark"]
Head = Literal["none", "correction", "markov"]


@dataclass(frozen=True)
class BlockParts:
    """What sets the block drafters apart; everything else they share."""

    shared_basis: bool  # one projection of all captured layers (DFlash)
    layer_mix: bool  # each draft layer weighs the captured layers itself (DFlare)
    own_context_projections: bool  # keys and values of the context have weights of their own
    head: Head  # how a draft sees the one before it
    anchor_first: bool  # slot k predicts the token after its position; otherwise its own, and slot 0 nothing


BLOCK_PARTS: dict[str, BlockParts] = {
    "dfly": BlockParts(True, True, False, "correction", False),
    "dflash": BlockParts(True, False, False, "none", False),
    "dflare": BlockParts(False, True, True, "none", False),
    "dspark": BlockParts(True, False, False, "markov", True),
}


class DrafterConfig(BaseModel):
    """Shape of a drafter network, and the target that it belongs to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    depth: int = Field(ge=1, description="longest draft, D")
    layers: int = Field(ge=1)
    feature_layers: tuple[int, ...] = Field(min_length=1, description="captured layers it reads, in this order")
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope_scale: float
    qk_norm: bool = Field(description="root-mean-square norm of every query and key head")
    vocabulary_size: int
    draft_vocabulary_size: int = Field(description="tokens it can draft")
    head: Head | None = Field(None, description="of a block drafter, instead of its kind's own")
    markov_rank: int = Field(64, ge=1, description="of the Markov head")
    max_position: int
    target_sha256: str = Field(description="weights of the target it was trained for")

    @property
    def is_block(self) -> bool:
        return self.kind in BLOCK_PARTS

    @property
    def block_parts(self) -> BlockParts:
        """Of a block drafter. Raises KeyError for a recurrent one."""
        parts = BLOCK_PARTS[self.kind]
        return parts if self.head is None else replace(parts, head=self.head)

    @property
    def feature_size(self) -> int:
        return len(self.feature_layers) * self.hidden_size

    @classmethod
    def for_target(cls, target: DecoderConfig, target_sha256: str, **own: Any) -> DrafterConfig:
        """With the shape of its target. own: all other fields."""
        shape = {name: getattr(target, name) for name in OF_TARGET}
        return cls(target_sha256=target_sha256, **shape, **own)

    @classmethod
    def read(cls, folder: Path) -> DrafterConfig:
        """Raises pydantic.ValidationError for an unknown key, FileNotFoundError where there is no such file."""
        return cls.model_validate_json((folder / CONFIG).read_text())
