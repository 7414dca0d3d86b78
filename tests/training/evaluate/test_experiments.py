"""The list of experiments names only what exists, and its tables say what was measured."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from python_backend.drafters.config import DrafterConfig
from python_backend.settings import WORKLOADS
from training.evaluate.experiments import compare, read_experiments, read_results

LISTED = read_experiments()


def card(length, cumulative):
    measured = {"mean_acceptance_length": length, "cumulative_acceptance": cumulative}
    return {
        "held_out_temperature_0": dict.fromkeys((*WORKLOADS, "all"), measured),
        "parameters": 3_500_000,
        "seconds": 10.0,
    }


@pytest.mark.parametrize("run", LISTED.runs)
def test_every_run_is_a_recipe_of_its_own(run):
    recipes = [LISTED.recipe(run, seed) for seed in LISTED.seeds]
    assert [r.seed for r in recipes] == list(LISTED.seeds)
    assert {r.tokens_per_step for r in recipes} == {LISTED.common["tokens_per_step"]}
    assert [other for other in LISTED.runs if LISTED.recipe(other, 0) == recipes[0]] == [run]


def test_comparisons_are_between_runs_of_the_list():
    named = {run for several in (LISTED.groups, LISTED.curves) for runs in several.values() for run in runs}
    assert named == set(LISTED.runs)


def test_a_table_gives_mean_and_spread_of_the_seeds(tmp_path):
    for seed, length in enumerate((1.5, 1.7)):
        folder = tmp_path / f"mtp-no-ttt-{seed}"
        folder.mkdir()
        (folder / "card.json").write_text(json.dumps(card(length, [0.5, 0.2])))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(compare("Test", read_results(tmp_path)))
    text = console.export_text()
    assert "1.600 ±0.100" in text
    assert ".50 .40" in text
    assert "3.5 M" in text


def test_results_that_are_not_there_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no results"):
        read_results(tmp_path)


def test_runs_go_on_from_drafters_of_their_own_kind():
    going_on = [run for run in LISTED.runs if LISTED.initial(run)]
    assert going_on
    for run in going_on:
        config = DrafterConfig.read(LISTED.initial(run))
        recipe = LISTED.recipe(run, 0)
        assert (config.kind, config.layers, config.feature_layers) == (
            recipe.kind,
            recipe.layers,
            recipe.feature_layers,
        )
