"""The target network marks what the recipe captures, where it should, as trtllm-build would load and call it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.trtllm_engines import fake_tensorrt_llm as fake
from tests.trtllm_engines.fake_tensorrt_llm import LOGIT_ROWS, ROWS, Network, NetworkError, PretrainedConfig, Tensor
from trtllm_engines import pin
from trtllm_engines import recipe as recipes
from trtllm_engines.commands import MODEL_CLASS, MODEL_FILE
from trtllm_engines.pin import captured_name
from trtllm_engines.recipe import Recipe

STUBS = Path(pin.__file__).parent / "stubs" / "tensorrt_llm"
BUILDABLE = [name for name in recipes.names() if not recipes.load(name).missing]


@pytest.fixture
def models() -> Iterator[ModuleType]:
    """The model file, loaded by its path as tensorrt_llm/commands/build.py does."""
    with fake.installed():
        loader = SourceFileLoader("models", str(MODEL_FILE))
        spec = importlib.util.spec_from_loader("models", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        yield module


def config_of(recipe: Recipe, **changes: Any) -> PretrainedConfig:
    sizes = recipe.geometry
    hidden = ((ROWS, sizes.hidden), "bfloat16")
    expected = {captured_name(layer): hidden for layer in recipe.captured_layers}
    expected["logits"] = ((LOGIT_ROWS, sizes.vocabulary), "float32")
    values = {
        "dtype": "bfloat16",
        "logits_dtype": "float32",
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "vocab_size": sizes.vocabulary,
        "mapping": SimpleNamespace(rank=0, tp_size=1, pp_size=1),
        pin.CAPTURED: list(recipe.captured_layers),  # as config.json brings it
        "network": Network(expected),
        "fused": False,
        "paged": True,
    }
    return PretrainedConfig(**{**values, **changes})


def build(model_class: Any, config: PretrainedConfig) -> Network:
    """What tensorrt_llm/builder.py does with a model: make it, then call it with prepared inputs by name."""
    network = config.network
    model = model_class(config)
    model(input_ids=Tensor(network, (ROWS,)), use_cache=True, last_token_ids=Tensor(network, (LOGIT_ROWS,)))
    network.complete()
    return network


@pytest.mark.parametrize("name", BUILDABLE)
def test_every_captured_layer_is_an_output_over_all_rows(models: ModuleType, name: str) -> None:
    recipe = recipes.load(name)
    network = build(getattr(models, MODEL_CLASS[recipe.family]), config_of(recipe))
    inner = [captured_name(layer) for layer in recipe.captured_layers[:-1]]
    assert network.outputs == [*inner, "logits", captured_name(recipe.geometry.layers)]


def test_a_recipe_without_the_last_hidden_state_gives_only_the_others(models: ModuleType) -> None:
    recipe = recipes.load("qwen3-8b").model_copy(update={"captured_layers": (1, 9)})
    assert build(models.CapturingQwen, config_of(recipe)).outputs == ["captured_1", "captured_9", "logits"]


def test_fused_residuals_are_refused_with_the_flags_to_change(models: ModuleType) -> None:
    with pytest.raises(ValueError, match="--reduce_fusion and --norm_quant_fusion disable"):
        build(models.CapturingLlama, config_of(recipes.load("llama-3.1-8b"), fused=True))


def test_a_cache_that_is_not_paged_is_refused(models: ModuleType) -> None:
    with pytest.raises(ValueError, match="--kv_cache_type paged"):
        build(models.CapturingLlama, config_of(recipes.load("llama-3.1-8b"), paged=False))


def test_a_checkpoint_that_was_not_marked_is_refused(models: ModuleType) -> None:
    config = config_of(recipes.load("qwen3-8b"))
    delattr(config, pin.CAPTURED)
    with pytest.raises(ValueError, match="no 'captured_layers': run `make engines`"):
        build(models.CapturingQwen, config)


def test_pipeline_stages_are_refused(models: ModuleType) -> None:
    config = config_of(recipes.load("qwen3-8b"), mapping=SimpleNamespace(rank=0, tp_size=1, pp_size=2))
    with pytest.raises(ValueError, match="pp_size is 2"):
        build(models.CapturingQwen, config)


def test_the_stand_in_rejects_a_mark_after_the_gather(models: ModuleType) -> None:
    class Late(fake.QWenForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            result = super().forward(*args, **kwargs)
            result[1].mark_output("captured_36", "bfloat16")
            return result

    with pytest.raises(NetworkError, match=rf"captured_36' is bfloat16 \({LOGIT_ROWS}, 4096\)"):
        build(Late, config_of(recipes.load("qwen3-8b")))


@pytest.mark.parametrize(
    ("name", "dtype", "complaint"),
    [
        ("hidden_1", "bfloat16", "'hidden_1' is not in the contract"),
        ("captured_2", "bfloat16", "'captured_2' is not in the contract"),
        ("captured_1", "float32", r"'captured_1' is float32 .*, expected .*bfloat16"),
    ],
)
def test_the_stand_in_rejects_a_wrong_name_or_dtype(name: str, dtype: str, complaint: str) -> None:
    network = config_of(recipes.load("qwen3-8b")).network
    with pytest.raises(NetworkError, match=complaint):
        Tensor(network, (ROWS, 4096)).mark_output(name, dtype)


def test_the_stand_in_rejects_a_forgotten_and_a_double_mark() -> None:
    network = config_of(recipes.load("qwen3-8b")).network
    with pytest.raises(NetworkError, match="not marked: captured_1, captured_9"):
        network.complete()
    Tensor(network, (ROWS, 4096)).mark_output("captured_1", "bfloat16")
    with pytest.raises(NetworkError, match="twice"):
        Tensor(network, (ROWS, 4096)).mark_output("captured_1", "bfloat16")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("functional", "Tensor"),
        ("models/modeling_utils", "DecoderLayerList"),
        ("models/modeling_utils", "DecoderModelForCausalLM"),
        ("models/llama/model", "LLaMADecoderLayer"),
        ("models/llama/model", "LLaMAForCausalLM"),
        ("models/qwen/model", "QWenDecoderLayer"),
        ("models/qwen/model", "QWenForCausalLM"),
    ],
)
def test_the_stand_ins_have_the_recorded_signatures(file: str, name: str) -> None:
    tree = ast.parse((STUBS / f"{file}.pyi").read_text())
    (recorded,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    for method in (node for node in recorded.body if isinstance(node, ast.FunctionDef) and not node.decorator_list):
        if name == "Tensor" and method.name == "__init__":
            continue
        stand_in = inspect.signature(getattr(getattr(fake, name), method.name))
        assert list(stand_in.parameters) == [argument.arg for argument in method.args.args], (name, method.name)


def test_build_and_runtime_name_the_outputs_alike() -> None:
    assert [captured_name(layer) for layer in (1, 36)] == ["captured_1", "captured_36"]
