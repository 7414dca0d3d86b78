"""The numbers of docs/h20.md are those of `make plan`, and its commands exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import typer

from trtllm_engines import recipe as recipes
from trtllm_engines.pin import IMAGE, TENSORRT_LLM
from trtllm_engines.plan import GB, GPUS, fit, make

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "h20.md").read_text()
ROW = re.compile(r"^\| ([\w.-]+), (bfloat16|FP8) \| ([\d.]+) GB \| ([\d,]+) B \| (\d+) / (\d+) \| (\d+) rows \|$", re.M)


def test_the_table_is_the_plan() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) == 4
    for name, precision, weights, kv, small, large, ridge in rows:
        plan = make(recipes.load(name), "fp8" if precision == "FP8" else "bf16")
        assert weights == f"{plan.uses[0].bytes / GB:.2f}"
        assert int(kv.replace(",", "")) == plan.kv_target + plan.kv_drafters
        assert [int(small), int(large)] == [fit(plan, gpu.memory).sequences for gpu in GPUS]
        assert int(ridge) == plan.ridge


def test_the_page_names_the_pinned_container() -> None:
    assert IMAGE in PAGE
    assert f"TensorRT-LLM {TENSORRT_LLM}" in PAGE


@pytest.mark.parametrize("page", ["h20.md", "migration.md"])
def test_what_the_pages_link_to_is_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("http")]
    assert [link for link in links if not list((ROOT / "docs").glob(link))] == []


def test_every_module_that_the_page_starts_takes_the_options_that_it_names() -> None:
    """`make` is not in the container, so the page names the programs behind it."""
    named = re.findall(r"python3? -m ((?:build_scripts|trtllm_engines|clients)[\w.]+)((?:[^`|#\n\\]|\\\n)*)", PAGE)
    assert {"build_scripts.engines", "build_scripts.serve_engines", "build_scripts.plan"} <= {name for name, _ in named}
    for name, words in named:
        app = typer.Typer()
        app.command()(importlib.import_module(name).main)
        taken = {
            option
            for parameter in typer.main.get_command(app).params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert set(re.findall(r"--[\w-]+", words)) <= taken, name


def test_every_claim_has_one_of_the_three_states() -> None:
    table = PAGE.split("## What was run where")[1]
    states = [row.split("|")[2].strip() for row in table.splitlines() if row.startswith("| ")][1:]
    allowed = ("run on CPU", "checked against recorded contract", "not run yet")
    assert states
    assert [state for state in states if not state.startswith(allowed)] == []
