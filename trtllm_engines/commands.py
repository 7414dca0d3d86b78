"""Every step from a checkpoint on the hub to engines that can be served, as command lines."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trtllm_engines.pin import TOKENS_PER_BLOCK
from trtllm_engines.recipe import Family, Precision, Recipe

ROOT = Path(__file__).resolve().parent.parent
MODEL_FILE = Path(__file__).parent / "target_model.py"
MODEL_CLASS: dict[Family, str] = {"llama": "CapturingLlama", "qwen": "CapturingQwen"}
CALIBRATION_SAMPLES = 512  # what the upstream documentation uses for FP8


class Folders(NamedTuple):
    """Where things are and go."""

    checkpoint: Path  # from the hub
    converted: Path  # TensorRT-LLM's own format
    target: Path  # the target's engine
    drafters: Path  # one folder of engines a drafter
    onnx: Path  # one folder of graphs a drafter, exported from trained weights
    settings: Path  # of a server for these engines, a file
    work: Path  # all of the above
    examples: Path  # TensorRT-LLM's, with its conversion scripts

    @classmethod
    def under(cls, work: Path, recipe: Recipe, precision: Precision, examples: Path) -> Folders:
        build, model = work / f"{recipe.name}-{precision}", work / recipe.name
        return cls(
            checkpoint=model / "checkpoint",
            converted=build / "converted",
            target=build / "target",
            drafters=build / "drafters",
            onnx=model / "onnx",
            settings=build / "angelspec.yaml",
            work=work,
            examples=examples,
        )


class Step(NamedTuple):
    """One command line. `program` is its entry in the record of options, "" for this repository's own."""

    name: str
    why: str
    command: tuple[str, ...]
    program: str
    arguments: tuple[str, ...]  # what of the command follows the program


def steps(recipe: Recipe, precision: Precision, folders: Folders, drafters: bool = True) -> list[Step]:
    """All steps in order. Raises RecipeError where the recipe cannot be built."""
    recipe.check_buildable()
    built = recipe.drafters if drafters else {}
    return [
        _download(recipe, folders),
        _convert(recipe, precision, folders),
        _mark(recipe, folders),
        _build(recipe, precision, folders),
        _stamp(recipe, precision, folders),
        *(_drafter(recipe, name, folders) for name in built),
        _validate(recipe, precision, folders),
        _settings(recipe, precision, folders),
    ]


def _download(recipe: Recipe, folders: Folders) -> Step:
    arguments = (
        *(recipe.checkpoint, "--revision", recipe.revision),
        *("--local-dir", shown(folders.checkpoint)),
        *("--exclude", "original/*"),  # Llama's weights once more, as pickles: as much again, and nothing reads them
    )
    return Step("download", "the checkpoint from the hub", ("hf", "download", *arguments), "hf download", arguments)


def _convert(recipe: Recipe, precision: Precision, folders: Folders) -> Step:
    common = (
        *("--model_dir", shown(folders.checkpoint)),
        *("--output_dir", shown(folders.converted)),
        *("--dtype", "bfloat16"),
        *("--tp_size", str(recipe.tensor_parallel)),
    )
    if precision == "bf16":
        why = "to TensorRT-LLM's format"
        return _script("convert", why, f"models/core/{recipe.family}/convert_checkpoint.py", common, folders)
    fp8 = ("--qformat", "fp8", "--kv_cache_dtype", "fp8", "--calib_size", str(CALIBRATION_SAMPLES))
    return _script("convert", "to FP8, calibrated on samples", "quantization/quantize.py", (*common, *fp8), folders)


def _mark(recipe: Recipe, folders: Folders) -> Step:
    layers = ",".join(map(str, recipe.captured_layers))
    arguments = (
        *("checkpoint", "--folder", shown(folders.converted)),
        *("--layers", layers),
        *("--source", shown(folders.checkpoint)),
    )
    return _own("mark", "which hidden states the engine gives out, and what the conversion lost", "mark", arguments)


def _build(recipe: Recipe, precision: Precision, folders: Folders) -> Step:
    limits, fp8 = recipe.limits, precision == "fp8"
    arguments = (
        *("--checkpoint_dir", shown(folders.converted)),
        *("--output_dir", shown(folders.target)),
        *("--model_cls_file", shown(MODEL_FILE)),
        *("--model_cls_name", MODEL_CLASS[recipe.family]),
        # Packed ragged rows over a paged cache, several of them on a sequence that has a past: a verify pass.
        *("--gpt_attention_plugin", "bfloat16"),
        *("--remove_input_padding", "enable"),
        *("--kv_cache_type", "paged"),
        *("--tokens_per_block", str(TOKENS_PER_BLOCK)),
        *("--use_paged_context_fmha", "enable"),
        *("--use_fp8_context_fmha", "enable" if fp8 else "disable"),
        *("--gemm_plugin", "disable" if fp8 else "auto"),
        *(("--moe_plugin", "auto") if recipe.geometry.experts else ()),
        # The residual stream of a layer must be one tensor to be given out.
        *("--reduce_fusion", "disable"),
        *("--norm_quant_fusion", "disable"),
        # One profile: with several, kernels change with the load, and near-ties between two tokens with them.
        *("--multiple_profiles", "disable"),
        *("--max_batch_size", str(limits.max_batch_size)),
        *("--max_input_len", str(limits.max_length)),
        *("--max_seq_len", str(limits.max_length)),
        *("--max_num_tokens", str(limits.max_rows)),
        # What kernels are chosen for; by default as many rows as sequences, which only plain decoding has.
        *("--opt_num_tokens", str(recipe.verify_rows)),
        *("--max_beam_width", "1"),
        # Makes room for the logits of B (D + 1) rows; acceptance is ours.
        *("--speculative_decoding_mode", "draft_tokens_external"),
        *("--max_draft_len", str(recipe.depth)),
        *("--logits_dtype", "float32"),
        # More would build in processes that cannot find a class loaded from a file.
        *("--workers", "1"),
        *(
            "--output_timing_cache",
            shown(folders.target.parent / "timing.cache"),
        ),  # else a file where one happens to be
    )
    return Step("build", "the target's engine", ("trtllm-build", *arguments), "trtllm-build", arguments)


def _stamp(recipe: Recipe, precision: Precision, folders: Folders) -> Step:
    arguments = ("engine", "--folder", shown(folders.target), "--target", recipe.name, "--precision", precision)
    return _own("stamp", "on which GPU it was built", "mark", arguments)


def _drafter(recipe: Recipe, name: str, folders: Folders) -> Step:
    limits = recipe.limits
    arguments = (
        *("--onnx", shown(folders.onnx / name)),
        *("--output", shown(folders.drafters / name)),
        *("--sequences", str(limits.max_batch_size)),
        *("--rows", str(limits.max_rows)),
        *("--context", str(limits.max_length + recipe.drafters[name].depth + 1)),
    )
    return _own(name, "its engines, one for each graph", "build_drafter", arguments)


def _validate(recipe: Recipe, precision: Precision, folders: Folders) -> Step:
    arguments = ("--target", recipe.name, "--precision", precision, "--folder", shown(folders.target))
    return _own("validate", "that the engine is what the recipe says", "validate", arguments)


def _settings(recipe: Recipe, precision: Precision, folders: Folders) -> Step:
    arguments = ("--target", recipe.name, "--precision", precision, "--work", shown(folders.work))
    return _own("settings", "of a server, sized for this GPU", "serve_settings", arguments)


def _script(name: str, why: str, path: str, arguments: tuple[str, ...], folders: Folders) -> Step:
    return Step(name, why, ("python3", shown(folders.examples / path), *arguments), f"examples/{path}", arguments)


def shown(path: Path) -> str:
    """A path as a step has it: steps run in the repository's root."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _own(name: str, why: str, module: str, arguments: tuple[str, ...]) -> Step:
    return Step(name, why, ("python3", "-m", f"trtllm_engines.{module}", *arguments), "", arguments)
