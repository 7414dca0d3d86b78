"""The plan's arithmetic against numbers worked out by hand, and against sizes that others publish."""

from __future__ import annotations

import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

from build_scripts import plan as program
from python_backend.drafters.weights import build_network
from tests.training.drafting import KINDS, VOCABULARY, toy_config, toy_target
from trtllm_engines import recipe as recipes
from trtllm_engines.plan import GPUS, fit, make, ridge_rows
from trtllm_engines.recipe import Drafter, Geometry
from trtllm_engines.sizes import (
    drafter_kv_bytes,
    drafter_parameters,
    kv_bytes,
    parameters,
    touched,
    weight_bytes,
)

# The models' own pages say 8.03 B, 8.2 B, 30.5 B and 295 B. By hand: embedding and head, then each layer's query and
# output, key and value, three matrices of the feed-forward network, and norms; then the last norm.
LLAMA = 2 * 128256 * 4096 + 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096) + 4096
QWEN = 2 * 151936 * 4096 + 36 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128) + 4096


@pytest.mark.parametrize(
    ("name", "count"),
    [("llama-3.1-8b", 8_030_261_248), ("qwen3-8b", 8_190_735_360), ("qwen3-30b-a3b", 30_532_122_624)],
)
def test_parameters_are_those_of_the_checkpoint(name: str, count: int) -> None:
    assert parameters(recipes.load(name).geometry).total == count


def test_by_hand() -> None:
    assert (LLAMA, QWEN) == (8_030_261_248, 8_190_735_360)
    assert parameters(recipes.load("hy3").geometry).total / 1e9 == pytest.approx(295, abs=0.5)


def test_bfloat16_weights_are_two_bytes_each() -> None:
    assert weight_bytes(recipes.load("qwen3-8b").geometry, "bf16") == 2 * QWEN


def test_fp8_halves_the_matrices_but_neither_embedding_head_nor_norms() -> None:
    geometry = recipes.load("qwen3-8b").geometry
    kept = 2 * 151936 * 4096 + 36 * (2 * 4096 + 2 * 128) + 4096
    assert weight_bytes(geometry, "fp8") == 2 * kept + (QWEN - kept)


def test_two_gpus_split_matrices_and_head_and_copy_the_rest() -> None:
    geometry = recipes.load("qwen3-8b").geometry
    copied = 151936 * 4096 + 36 * (2 * 4096 + 2 * 128) + 4096
    assert weight_bytes(geometry, "bf16", gpus=2) == 2 * copied + (QWEN - copied)


@pytest.mark.parametrize(
    ("name", "precision", "gpus", "expected"),
    [
        ("qwen3-8b", "bf16", 1, 2 * 36 * 8 * 128 * 2),  # 147,456
        ("qwen3-8b", "fp8", 1, 73_728),
        ("llama-3.1-8b", "bf16", 1, 131_072),
        ("qwen3-30b-a3b", "bf16", 1, 98_304),
        ("hy3", "bf16", 1, 327_680),
        ("hy3", "fp8", 8, 20_480),
    ],
)
def test_kv_of_a_token(name: str, precision: recipes.Precision, gpus: int, expected: int) -> None:
    assert kv_bytes(recipes.load(name).geometry, precision, gpus) == expected


def test_drafters_are_as_large_as_published() -> None:
    """arXiv:2607.25852's shapes for Qwen3-8B: MTP about 226 M trained parameters, DFly 1.132 B; Hy3's DFly 1.363 B."""
    qwen, hy3 = recipes.load("qwen3-8b"), recipes.load("hy3")
    counts = {name: drafter_parameters(drafter, qwen.geometry) for name, drafter in qwen.drafters.items()}
    assert counts["drafter_mtp"] / 1e6 == pytest.approx(226, abs=1)
    assert counts["drafter_dfly"] / 1e9 == pytest.approx(1.132, abs=0.001)
    assert drafter_parameters(hy3.drafters["drafter_dfly"], hy3.geometry) / 1e9 == pytest.approx(1.363, abs=0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_a_drafter_are_those_of_its_network(kind: str) -> None:
    """But for the norms, and what a block drafter has for its mask and its mix."""
    config = toy_config(kind, draft_vocabulary_size=VOCABULARY)
    sizes = {"heads": config.heads, "kv_heads": config.kv_heads, "head_dim": config.head_dim, "ffn": 1, "layers": 4}
    geometry = Geometry(**sizes, hidden=config.hidden_size, vocabulary=VOCABULARY)
    layers = {"layers": config.layers, "feature_layers": config.feature_layers, "markov_rank": config.markov_rank}
    drafter = Drafter(kind=kind, depth=config.depth, ffn=config.intermediate_size, **layers)
    network = build_network(config, toy_target(), torch.arange(VOCABULARY), torch.ones(len(config.feature_layers)))
    matrices = [p for name, p in network.named_parameters() if p.ndim == 2 and name != "mix"]
    unknown = config.markov_rank if kind == "dspark" else 0  # the row of tokens that cannot be drafted
    assert drafter_parameters(drafter, geometry) == sum(p.numel() for p in matrices) - unknown


def test_drafter_kv_of_a_token() -> None:
    recipe = recipes.load("qwen3-8b")
    each = {name: drafter_kv_bytes(drafter, recipe.geometry) for name, drafter in recipe.drafters.items()}
    assert each == {"drafter_mtp": 4_096, "drafter_dfly": 20_480}


def test_what_fits_on_an_h20_by_hand() -> None:
    """Qwen3-8B: 16.38 + 0.45 + 2.26 + 2.49 + 0.31 + 0.10 + 0.60 + 4 GB, then 90 % of the rest in blocks of 32."""
    plan = make(recipes.load("qwen3-8b"), "bf16")
    copies = 2 * 151936 * 4096
    mtp = 192_937_984 + 2 * 4096**2
    dfly = 5 * 192_937_984 + 10 * 4096**2
    states = 6 * 4096 * 2  # of a row
    fixed = 2 * QWEN + 2 * (mtp + dfly + copies) + 512 * 151936 * 4 + 2048 * states + 4e9
    fixed += (8192 + 64 * 32 + 2048) * states
    assert plan.fixed == fixed
    held = [fit(plan, gpu.memory) for gpu in GPUS]
    for each, memory in zip(held, (96e9, 141e9), strict=True):
        blocks = int(0.9 * (memory - fixed) // ((147_456 + 24_576) * 32))
        assert (each.tokens, each.sequences) == (blocks * 32, blocks // 256)
    assert [each.sequences for each in held] == [44, 73]


def test_a_target_that_does_not_fit_gets_no_sequences() -> None:
    recipe = recipes.load("hy3").model_copy(update={"tensor_parallel": 1})
    assert [fit(make(recipe, "bf16"), gpu.memory)[1:] for gpu in GPUS] == [(0, 0), (0, 0)]


def test_a_dense_target_turns_compute_bound_at_37_rows_in_both_precisions() -> None:
    """148e12 / 4.0e12 = 37 FLOP a byte; two FLOP a row and weight over two bytes: 37 rows. FP8 doubles both."""
    recipe = recipes.load("qwen3-8b")
    assert [ridge_rows(recipe, precision, GPUS[0]) for precision in recipe.precisions] == [37, 37]


def test_experts_move_it_up_until_all_are_touched() -> None:
    recipe = recipes.load("qwen3-30b-a3b")
    rows = ridge_rows(recipe, "bf16", GPUS[0])
    experts = recipe.geometry.experts
    assert experts is not None
    dense = 48 * (2 * 2048 * 4096 + 2 * 2048 * 512)
    routed, per_row = 48 * 128 * 3 * 2048 * 768, 48 * 8 * 3 * 2048 * 768
    assert touched(experts, rows) == pytest.approx(1, abs=1e-6)
    assert rows == pytest.approx(37 * (dense + routed) / (dense + per_row), abs=1)


def test_experts_touched_by_hand() -> None:
    experts = recipes.load("qwen3-30b-a3b").geometry.experts
    assert experts is not None
    assert (touched(experts, 1), touched(experts, 2)) == pytest.approx((1 / 16, 1 - (15 / 16) ** 2))


@pytest.mark.parametrize("name", recipes.names())
def test_make_plan_shows_what_fits_and_what_is_assumed(name: str) -> None:
    result = run("--target", name)
    assert result.exit_code == 0
    for word in ("H20 96 GB", "H20 141 GB", "workspace allowance", "assumed, not", "compute-bound on H20"):
        assert word in result.output
    assert ("cannot be built yet" in result.output) == (name == "hy3")


def test_make_plan_refuses_what_no_recipe_has() -> None:
    result = run("--target", "qwen3-8b", "--precision", "int4")
    assert result.exit_code == 1
    assert "choose from bf16, fp8" in result.output


def run(*arguments: str):  # type: ignore[no-untyped-def]
    app = Typer()
    app.command()(program.main)
    return CliRunner().invoke(app, list(arguments))
