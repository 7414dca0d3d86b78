"""What fits where, and from how many rows on a verify pass is bound by arithmetic: `make plan`.

Pure arithmetic over a recipe. GPU figures are the vendor's, with GB as 1e9 bytes; nothing here was measured.
"""

from __future__ import annotations

from typing import NamedTuple

from python_backend.settings import TargetSettings
from trtllm_engines.pin import TOKENS_PER_BLOCK
from trtllm_engines.recipe import Precision, Recipe
from trtllm_engines.sizes import (
    BF16,
    BYTES,
    FP32,
    drafter_kv_bytes,
    drafter_parameters,
    kv_bytes,
    parameters,
    touched,
    weight_bytes,
)

GB = 1e9


class Gpu(NamedTuple):
    """Vendor figures: dense peaks without sparsity."""

    name: str
    memory: float  # bytes
    flops: dict[Precision, float]  # multiply-adds count as two
    bandwidth: float  # bytes/s


# NVIDIA's H20: 96 GB HBM3 at 4.0 TB/s, 148 TFLOPS bfloat16, 296 FP8. Of the 141 GB variant only the memory is used.
H20_FLOPS: dict[Precision, float] = {"bf16": 148e12, "fp8": 296e12}
GPUS = (Gpu("H20 96 GB", 96 * GB, H20_FLOPS, 4.0e12), Gpu("H20 141 GB", 141 * GB, H20_FLOPS, 4.0e12))


class Use(NamedTuple):
    """One line of the memory that is not KV cache."""

    what: str
    bytes: float
    how: str


class Fit(NamedTuple):
    """What a GPU holds beside the rest."""

    pool: float  # bytes for KV blocks, <= 0 where the rest does not fit
    tokens: int  # that the pool holds
    sequences: int  # of max_length


class Plan(NamedTuple):
    """Where the memory of a GPU goes, and how many sequences that leaves room for."""

    recipe: Recipe
    precision: Precision
    uses: tuple[Use, ...]
    kv_target: int  # bytes a token, one GPU
    kv_drafters: int
    ridge: int  # rows

    @property
    def fixed(self) -> float:
        """Bytes that are not KV cache."""
        return sum(use.bytes for use in self.uses)


def make(recipe: Recipe, precision: Precision) -> Plan:
    """The plan of one GPU of a target; with tensor parallelism, of the one that also runs the drafters."""
    geometry = recipe.geometry
    kv_target = kv_bytes(geometry, precision, recipe.tensor_parallel)
    kv_drafters = sum(drafter_kv_bytes(drafter, geometry) for drafter in recipe.drafters.values())
    uses = _uses(recipe, precision)
    return Plan(recipe, precision, uses, kv_target, kv_drafters, ridge_rows(recipe, precision, GPUS[0]))


def fit(plan: Plan, memory: float) -> Fit:
    """What a GPU of `memory` bytes holds, in whole blocks."""
    recipe = plan.recipe
    pool = recipe.kv_fraction * (memory - plan.fixed)
    blocks = max(0, int(pool // ((plan.kv_target + plan.kv_drafters) * TOKENS_PER_BLOCK)))
    each = -(-recipe.limits.max_length // TOKENS_PER_BLOCK)
    return Fit(pool, blocks * TOKENS_PER_BLOCK, blocks // each)


def _uses(recipe: Recipe, precision: Precision) -> tuple[Use, ...]:
    geometry, gpus = recipe.geometry, recipe.tensor_parallel
    borrowed = 2 * geometry.vocabulary * geometry.hidden * BF16
    drafters = (
        Use(name, drafter_parameters(drafter, geometry) * BF16, f"{drafter.kind}, bfloat16")
        for name, drafter in recipe.drafters.items()
    )
    captured = len(recipe.captured_layers) * geometry.hidden * BF16  # bytes a row
    limits = recipe.limits
    kept = TargetSettings().prefix_cache + limits.max_batch_size * TOKENS_PER_BLOCK + limits.max_rows
    return (
        Use("weights", weight_bytes(geometry, precision, gpus), f"{precision}" + (f", 1 of {gpus}" * (gpus > 1))),
        *drafters,
        Use("embedding, head", borrowed, "bfloat16, one copy for all drafters"),
        Use(
            "logits",
            recipe.verify_rows * geometry.vocabulary * FP32,
            f"float32, {recipe.verify_rows} rows x {geometry.vocabulary}",
        ),
        Use(
            "captured states",
            limits.max_rows * captured,
            f"bfloat16, {limits.max_rows} rows x {len(recipe.captured_layers)} layers x {geometry.hidden}",
        ),
        Use("kept states", kept * captured, f"bfloat16, {kept} rows of prompts that others may begin with"),
        Use("workspace allowance", recipe.workspace_gb * GB, "assumed, not measured"),
    )


def ridge_rows(recipe: Recipe, precision: Precision, gpu: Gpu) -> int:
    """Smallest number of rows T of a pass whose matrix products take longer than reading their weights.

    2 T P(row) / peak FLOP/s >= bytes(T) / bandwidth, the roofline model. For a dense target the weights cancel and
    T = peak / bandwidth * bytes per weight / 2: about 37 on H20 in both precisions. With experts, bytes(T) grows with T
    until all are touched, and a row passes few of them, so T is higher. Left out: the head, and reading the KV cache,
    which is on top and grows with the context, not with the rows.
    """
    count, experts = parameters(recipe.geometry), recipe.geometry.experts
    size, peak = BYTES[precision], gpu.flops[precision]

    def bound_by_arithmetic(rows: int) -> bool:
        routed = count.routed * (touched(experts, rows) if experts else 0)
        reading = (count.dense + routed) * size / gpu.bandwidth
        return 2 * rows * (count.dense + count.per_row) / peak >= reading

    rows = 1
    while not bound_by_arithmetic(rows):
        rows += 1
    return rows
