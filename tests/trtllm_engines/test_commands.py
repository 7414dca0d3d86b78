"""Every command line of every recipe has options that its program is recorded to take."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
import typer

from trtllm_engines import cli
from trtllm_engines import recipe as recipes
from trtllm_engines.commands import Folders, Step, steps
from trtllm_engines.pin import TENSORRT_LLM
from trtllm_engines.preflight import unfit_options
from trtllm_engines.recipe import Precision, RecipeError

BUILDS = [
    (name, precision)
    for name in recipes.names()
    if not recipes.load(name).missing
    for precision in recipes.load(name).precisions
]


def planned(name: str, precision: Precision) -> list[Step]:
    recipe = recipes.load(name)
    return steps(recipe, precision, Folders.under(Path("/w"), recipe, precision, Path("/app/examples")))


def value_of(step: Step, option: str) -> str:
    return step.arguments[step.arguments.index(option) + 1]


@pytest.mark.parametrize(("name", "precision"), BUILDS)
def test_every_option_is_in_the_record(name: str, precision: Precision) -> None:
    assert unfit_options(planned(name, precision)) == []


@pytest.mark.parametrize(("name", "precision"), BUILDS)
def test_our_own_programs_take_their_options(name: str, precision: Precision) -> None:
    own = [step for step in planned(name, precision) if not step.program]
    assert {step.name for step in own} == {"mark", "stamp", "drafter_mtp", "drafter_dfly", "validate", "settings"}
    for step in own:
        module = importlib.import_module(step.command[2])
        app = getattr(module, "app", None) or typer.Typer()
        if not hasattr(module, "app"):
            app.command()(module.main)
        command = typer.main.get_command(app)
        context = command.make_context(step.name, list(step.arguments))  # raises on an unknown or missing option
        if isinstance(command, typer.core.TyperGroup):
            name_, inner, rest = command.resolve_command(context, list(step.arguments))
            assert inner is not None
            inner.make_context(name_, rest, parent=context)


def test_hy3_has_no_steps() -> None:
    recipe = recipes.load("hy3")
    with pytest.raises(RecipeError, match="no Hunyuan"):
        steps(recipe, "fp8", Folders.under(Path("/w"), recipe, "fp8", Path("/app/examples")))


def test_the_engine_is_built_for_what_the_recipe_says() -> None:
    (build,) = (step for step in planned("qwen3-8b", "bf16") if step.name == "build")
    wanted = {
        "--model_cls_name": "CapturingQwen",
        "--max_batch_size": "64",
        "--max_seq_len": "8192",
        "--max_num_tokens": "2048",
        "--opt_num_tokens": "512",  # a full verify pass; the default, max_batch_size, is plain decoding's
        "--max_draft_len": "7",  # the deepest drafter's
        "--use_paged_context_fmha": "enable",
        "--use_fp8_context_fmha": "disable",
    }
    assert {option: value_of(build, option) for option in wanted} == wanted


@pytest.mark.parametrize(("name", "precision"), BUILDS)
def test_the_copy_of_the_weights_that_nothing_reads_is_not_fetched(name: str, precision: Precision) -> None:
    (download,) = (step for step in planned(name, precision) if step.name == "download")
    assert value_of(download, "--exclude") == "original/*"


def test_fp8_is_calibrated_and_keeps_its_cache_in_fp8() -> None:
    convert, build = (step for step in planned("llama-3.1-8b", "fp8") if step.name in ("convert", "build"))
    assert convert.program == "examples/quantization/quantize.py"
    assert (value_of(convert, "--qformat"), value_of(convert, "--kv_cache_dtype")) == ("fp8", "fp8")
    assert (value_of(build, "--use_fp8_context_fmha"), value_of(build, "--gemm_plugin")) == ("enable", "disable")


def test_captured_layers_are_written_before_the_engine_is_built() -> None:
    names = [step.name for step in planned("qwen3-8b", "bf16")]
    assert names.index("convert") < names.index("mark") < names.index("build") < names.index("stamp")


def test_without_drafters_there_are_no_drafter_steps() -> None:
    recipe = recipes.load("qwen3-8b")
    folders = Folders.under(Path("/w"), recipe, "bf16", Path("/e"))
    assert not {step.name for step in steps(recipe, "bf16", folders, drafters=False)} & set(recipe.drafters)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--max_batchsize", "8"), "trtllm-build has no --max_batchsize"),
        (("--auto_parallel", "2"), "trtllm-build has no --auto_parallel"),  # an option of older releases
        (("--kv_cache_type", "ragged"), "--kv_cache_type is ragged, it takes continuous, paged, disabled"),
        (("--use_paged_context_fmha", "true"), "--use_paged_context_fmha is true, it takes enable, disable"),
        (("--max_draft_len",), "--max_draft_len needs a value"),
        (("--max_draft_len", "--dry_run"), "--max_draft_len needs a value"),
    ],
)
def test_an_option_that_is_not_recorded_is_found(arguments: tuple[str, ...], complaint: str) -> None:
    (found,) = cli.complaints("trtllm-build", arguments)
    assert complaint in found


def test_a_switch_takes_no_value_and_the_rest_is_still_checked() -> None:
    assert cli.complaints("trtllm-build", ("--dry_run", "--max_batch_size", "8")) == []
    assert cli.complaints("trtllm-build", ("--dry_run", "--nope", "1", "--strip_plan")) == [
        "trtllm-build has no --nope"
    ]


def test_the_record_is_of_the_pinned_release_and_names_its_sources() -> None:
    assert cli.RECORD.name == f"cli_{TENSORRT_LLM.replace('.', '_')}.json"
    for program in cli.record().values():
        assert program.sources
        assert all(source.split()[0].count("/") == 1 and ".py" in source for source in program.sources)


def test_hf_download_is_as_recorded() -> None:
    """The one program of the record that is installed here."""
    from huggingface_hub.cli.download import download

    taken = {"--" + name.replace("_", "-") for name in inspect.signature(download).parameters}
    assert set(cli.record()["hf download"].options) <= taken


def test_options_are_found_in_a_help_text() -> None:
    text = "usage: x [-h] [--max_batch_size N]\n  --kv_cache_type KV, --other-one\n  see a--b and ---"
    assert cli.options_in_help(text) == {"--max_batch_size", "--kv_cache_type", "--other-one"}
