"""The tensors of a target engine for a pass of ragged context rows, as TensorRT-LLM 1.2.1 declares and feeds them.

B sequences, R packed rows, N rows that need logits; L tokens and P blocks of the longest sequence that is served. Read
in the source, never run here on hardware; the paths are those of the upstream repository. Every sequence is in its
context phase with past keys and values, so all its rows are attended with their own causal ends, whatever their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from python_backend.engine import EngineError
from trtllm_engines.pin import captured_name
from trtllm_engines.runtime.config import EngineConfig

Memory = Literal["device", "host"]
Dimension = int | str  # a number, or the name of a count that changes from pass to pass

DECLARED = "tensorrt_llm/models/generation_mixin.py"  # prepare_basic_inputs, prepare_attention_inputs
FED = "cpp/tensorrt_llm/batch_manager/runtimeBuffers.cpp"  # setFromInputs
ATTENTION = "cpp/tensorrt_llm/batch_manager/transformerBuffers.cpp"
PAGED = "tensorrt_llm/runtime/kv_cache_manager.py"
GENERATION = "tensorrt_llm/runtime/generation.py"
MODEL = "tensorrt_llm/models/modeling_utils.py"
OURS = "trtllm_engines/target_model.py, of this repository"
WORKSPACE = "all_reduce_workspace"  # int64, allocated by upstream's own helper: tensorrt_llm/plugin/plugin.py
LOGITS = "logits"


class ContractError(EngineError):
    """A tensor is not as the engine wants it; the message names it, what is there and what was expected."""


class Rule(NamedTuple):
    """One tensor: its type, its shape, the memory it lies in, what it holds and where upstream says so."""

    name: str
    dtype: str
    shape: tuple[Dimension, ...]
    memory: Memory
    meaning: str
    source: str


class Declared(NamedTuple):
    """A tensor as an engine declares it; -1 for a dimension that changes."""

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int, ...]


def input_rules(config: EngineConfig) -> tuple[Rule, ...]:
    """Every input, in the order in which the engine declares them."""
    layers = config.layers
    device: Memory = "device"
    host: Memory = "host"
    return (
        Rule("input_ids", "int32", ("R",), device, "packed tokens", DECLARED),
        Rule("position_ids", "int32", ("R",), device, "past + 0, 1, … of each sequence", FED),
        Rule("last_token_ids", "int32", ("N",), device, "1 + packed row of each row that needs logits, rising", FED),
        Rule("sequence_length", "int32", ("B",), device, "past + new rows", FED),
        Rule("host_past_key_value_lengths", "int32", ("B",), host, "past + new rows in the context phase", FED),
        Rule("host_max_attention_window_sizes", "int32", (layers,), host, "longest sequence", ATTENTION),
        Rule("host_sink_token_length", "int32", (1,), host, "0", ATTENTION),
        Rule("cache_indirection", "int32", ("B", 1, "L"), device, "0: no beams", ATTENTION),
        Rule("kv_cache_block_offsets", "int32", (1, "B", 2, "P"), device, "block * layers * 2 + (0 K, 1 V)", PAGED),
        Rule("host_kv_cache_block_offsets", "int32", (1, "B", 2, "P"), host, "the same", PAGED),
        Rule("host_kv_cache_pool_pointers", "int64", (1, 2), host, "device address of the pool, 0", GENERATION),
        Rule("host_kv_cache_pool_mapping", "int32", (layers, 2), host, "pool 0, layer", GENERATION),
        Rule("context_lengths", "int32", ("B",), device, "new rows", FED),
        Rule("host_context_lengths", "int32", ("B",), host, "new rows", FED),
        Rule("host_request_types", "int32", ("B",), host, "0: context phase", FED),
        Rule("host_runtime_perf_knobs", "int64", (16,), host, "-1: defaults", GENERATION),
        Rule("host_context_progress", "int64", (1,), host, "0: nobody listens", ATTENTION),
    )


def output_rules(config: EngineConfig, captured: Sequence[int]) -> tuple[Rule, ...]:
    """Logits of the rows asked for, and the captured hidden states of all rows, marked before the last-token gather."""
    states = [
        Rule(captured_name(i), config.dtype, ("R", config.hidden), "device", f"layer {i}", OURS) for i in captured
    ]
    width = padded_vocabulary(config)
    return (Rule(LOGITS, config.logits_dtype, ("N", width), "device", "rows of last_token_ids", MODEL), *states)


def padded_vocabulary(config: EngineConfig) -> int:
    """Width of the head: a multiple of the ranks (tensorrt_llm/_utils.py, pad_vocab_size)."""
    return -(-config.vocabulary // config.tensor_parallel) * config.tensor_parallel


def check_engine(declared: Sequence[Declared], config: EngineConfig, captured: Sequence[int]) -> None:
    """Raise ContractError with everything in which an engine differs from the contract."""
    fed_elsewhere = (WORKSPACE,) if config.tensor_parallel > 1 else ()
    problems = differences(declared, input_rules(config), output_rules(config, captured), fed_elsewhere)
    if problems:
        raise ContractError("the engine does not fit: " + "; ".join(problems) + ". Build it again with `make engines`")


def differences(
    declared: Sequence[Declared], inputs: Sequence[Rule], outputs: Sequence[Rule], fed_elsewhere: Sequence[str] = ()
) -> list[str]:
    """Everything in which the tensors of an engine differ from the rules."""
    tensors = {tensor.name: tensor for tensor in declared}
    problems = [problem for rule in inputs for problem in _differences(tensors.get(rule.name), rule, True)]
    problems += [problem for rule in outputs for problem in _differences(tensors.get(rule.name), rule, False)]
    known = {rule.name for rule in (*inputs, *outputs)} | set(fed_elsewhere)
    problems += [
        f"input '{tensor.name}' {tensor.dtype} {list(tensor.shape)} is wanted by the engine, and nothing feeds it"
        for tensor in declared
        if tensor.is_input and tensor.name not in known
    ]
    return problems


def check_fed(
    name: str, dtype: str, shape: tuple[int, ...], memory: Memory, rule: Rule, counts: Mapping[str, int]
) -> None:
    """Raise ContractError where a tensor of a pass is not as its rule says. counts: by the names of dimensions."""
    expected = tuple(counts[d] if isinstance(d, str) else d for d in rule.shape)
    if (dtype, shape) != (rule.dtype, expected):
        raise ContractError(f"tensor '{name}' is {dtype} {list(shape)}, expected {rule.dtype} {list(expected)}")
    if memory != rule.memory:
        raise ContractError(f"tensor '{name}' lies in {memory} memory, expected {rule.memory} memory")


def _differences(tensor: Declared | None, rule: Rule, is_input: bool) -> list[str]:
    kind = "input" if is_input else "output"
    if tensor is None or tensor.is_input != is_input:
        return [f"{kind} '{rule.name}' ({rule.meaning}) is missing"]
    problems = []
    if tensor.dtype != rule.dtype:
        problems.append(f"{kind} '{rule.name}' is {tensor.dtype}, expected {rule.dtype}")
    if not _fits(tensor.shape, rule.shape):
        problems.append(f"{kind} '{rule.name}' has shape {list(tensor.shape)}, expected {_text(rule.shape)}")
    return problems


def _fits(shape: tuple[int, ...], rule: tuple[Dimension, ...]) -> bool:
    """Whether every dimension that the engine fixes is the rule's own. -1 takes anything."""
    return len(shape) == len(rule) and all(d in (-1, r) for d, r in zip(shape, rule, strict=True))


def _text(shape: tuple[Dimension, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
