"""Recipes are strict, and each fits itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from trtllm_engines import recipe as recipes
from trtllm_engines.recipe import RECIPES, Recipe, RecipeError

NAMES = recipes.names()


def raw(name: str = "qwen3-8b") -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    return {"name": name, **content}


def test_the_four_targets_have_a_recipe() -> None:
    assert NAMES == ["hy3", "llama-3.1-8b", "qwen3-30b-a3b", "qwen3-8b"]


@pytest.mark.parametrize("name", NAMES)
def test_captured_layers_are_evenly_spaced_from_1_to_n_minus_3_and_end_after_the_norm(name: str) -> None:
    recipe = recipes.load(name)
    layers = recipe.geometry.layers
    assert recipe.captured_layers == (*(round(1 + i * (layers - 4) / 4) for i in range(5)), layers)


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_has_rows_for_all_drafts_and_a_prompt_chunk(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.verify_rows == recipe.limits.max_batch_size * 8
    assert recipe.limits.max_rows > recipe.verify_rows


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"precission": ["fp8"]}, "precission"),
        ({"kv_fraction": 1.5}, "kv_fraction"),
        ({"captured_layers": [1, 9, 17, 25, 33, 37]}, "between 0 and 36"),
        ({"captured_layers": [9, 1, 17, 25, 33, 36]}, "ascending"),
        ({"captured_layers": [1, 9, 17, 25, 36]}, r"drafters\.drafter_dfly reads layers \[33\]"),
        ({"limits": {"max_batch_size": 64, "max_length": 8192, "max_rows": 500}}, "below the 512 rows"),
        ({"tensor_parallel": 3}, "8 KV heads do not divide by 3 GPUs"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Recipe.model_validate({**raw(), **change})


def test_an_unknown_target_names_the_known_ones() -> None:
    with pytest.raises(RecipeError, match=r"no recipe 'gpt-5'.*hy3.*qwen3-8b"):
        recipes.load("gpt-5")


def test_a_broken_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("checkpoint: a/b\n")
    monkeypatch.setattr(recipes, "RECIPES", tmp_path)
    with pytest.raises(RecipeError, match=r"bad\.yaml"):
        recipes.load("bad")


def test_precision_is_the_first_unless_another_is_asked_for() -> None:
    recipe = recipes.load("qwen3-8b")
    assert (recipe.chosen(""), recipe.chosen("fp8")) == ("bf16", "fp8")
    with pytest.raises(RecipeError, match="no precision 'int4': choose from bf16, fp8"):
        recipe.chosen("int4")


def test_hy3_says_what_is_missing_and_the_others_can_be_built() -> None:
    with pytest.raises(RecipeError, match=r"hy3 cannot be built: .*no Hunyuan.*MODEL_MAP"):
        recipes.load("hy3").check_buildable()
    for name in set(NAMES) - {"hy3"}:
        recipes.load(name).check_buildable()
