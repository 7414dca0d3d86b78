"""OpenVINO's paged attention operator: ragged rows over a KV cache in blocks.

The operator is private to OpenVINO and may change with any release, so the release is pinned and what the compiled
graph asks for is checked before anything is served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension

from python_backend.engine import EngineError

RELEASE = "2026.4.1"

# What the operator reads besides query, key, value and the two caches, beyond the inputs of a plain causal pass.
_LAYOUT = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins", "max_context_len")


class Heads(Protocol):
    """What attention has to know of a network."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class Layers(Heads, Protocol):
    """The shape of a target, as far as its KV cache goes."""

    @property
    def layers(self) -> int: ...


@dataclass(frozen=True, eq=False)
class PagedInputs:
    """Graph inputs shared by all layers."""

    past_lens: Any  # [B] int32, rows of each sequence in the cache
    subsequence_begins: Any  # [B + 1] int32, offsets of its rows in this pass
    block_indices: Any  # [sum of blocks] int32
    block_indices_begins: Any  # [B + 1] int32
    max_context_len: Any  # scalar int32, the longest sequence with this pass's rows

    @classmethod
    def create(cls) -> PagedInputs:
        return cls(**{n: parameter(n, np.int32, [] if n == "max_context_len" else [-1]) for n in _LAYOUT})

    def parameters(self) -> list[Any]:
        return [getattr(self, name) for name in _LAYOUT]


def check_release() -> str:
    """The installed OpenVINO release. Raises EngineError where it is not the pinned one."""
    installed = ov.__version__.split("-")[0]
    if installed != RELEASE:
        raise EngineError(
            f"OpenVINO {installed} is installed, expected {RELEASE}: this engine uses an operator that is private to "
            f"a release; install openvino=={RELEASE}"
        )
    return installed


def parameter(name: str, dtype: Any, shape: list[int]) -> Any:
    """A named graph input; -1 is any size."""
    node = ops.parameter(ov.PartialShape(shape), dtype, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def cache_names(layers: int) -> list[str]:
    return [f"{kind}_cache.{layer}" for layer in range(layers) for kind in ("key", "value")]


def cache_parameters(layer: int, config: Heads) -> list[Any]:
    """The key and value cache of a layer; their type and shape are the plugin's choice, made when it compiles."""
    caches = []
    for kind in ("key", "value"):
        node = parameter(f"{kind}_cache.{layer}", ov.Type.dynamic, [-1, -1, -1, -1])
        info = node.get_rt_info()
        info["num_kv_heads"], info["head_size"] = config.kv_heads, config.head_dim
        caches.append(node)
    return caches


def paged_attention(
    query: Any,
    key: Any,
    value: Any,
    caches: list[Any],
    inputs: PagedInputs,
    config: Heads,
    together: Any = None,
) -> Any:
    """[R, heads * head_dim] attention of rotated queries; stores the rows' keys and values in the cache.

    query: [R, heads * head_dim]. key, value: [R, kv_heads * head_dim]. together: [R] int32, ones where a sequence's
    rows of the pass all see each other; by default each sees those before it and itself.
    """
    i32, f32, u8 = np.int32, np.float32, np.uint8
    arguments = [
        query,
        key,
        value,
        *caches,
        inputs.past_lens,
        inputs.subsequence_begins,
        inputs.block_indices,
        inputs.block_indices_begins,
        _scalar(config.head_dim**-0.5, f32),  # scale
        _scalar(0, i32),  # sliding window: none
        _empty(f32),  # ALiBi slopes
        inputs.max_context_len,
        _empty(i32),  # score aggregation windows
        _empty(i32),  # rotated block indices
        _empty(i32),  # rotation deltas
        _empty(f32),  # rotation table
        _empty(f32),  # sparse attention threshold
        _scalar(0, i32),  # sparse attention block size
        _scalar(0, i32),  # sparse attention stride
        ops.constant(np.zeros((0, 0, 0, 0), f32)),  # attention sinks
        _scalar(0, i32),  # cache eviction: start size
        _empty(i32),  # eviction sizes
        _empty(i32),  # block diversity indices
        _empty(i32),  # and their begins
        _empty(i32) if together is None else together,  # token types: rows of images, which see their whole image
        _empty(u8),  # bias among the rows of a sequence: none, a causal chain
        _empty(i32),  # and its begins
    ]
    node = _PagedAttentionExtension([a.output(0) if hasattr(a, "output") else a for a in arguments])
    info = node.get_rt_info()
    for kind in ("k", "v"):
        info[f"num_{kind}_heads"], info[f"{kind}_head_size"] = config.kv_heads, config.head_dim
    return node.output(0)


def check_compiled(compiled: ov.CompiledModel, config: Layers) -> int:
    """The block size of the KV cache. Raises EngineError where the graph asks for other inputs, or another cache."""
    ports = {port.get_any_name(): port for port in compiled.inputs}
    if missing := [name for name in (*_LAYOUT, *cache_names(config.layers)) if name not in ports]:
        raise EngineError(f"OpenVINO's compiled graph has no input '{missing[0]}': it fused the graph in another way")
    sizes: set[int] = set()
    for name in cache_names(config.layers):
        dtype, dimensions = ports[name].element_type, list(ports[name].partial_shape)[1:]
        fixed = [d.get_length() if d.is_static else -1 for d in dimensions]
        if dtype != ov.Type.f32 or len(fixed) != 3 or (fixed[0], fixed[2]) != (config.kv_heads, config.head_dim):
            raise EngineError(
                f"OpenVINO wants '{name}' as {dtype} blocks of {fixed}, expected float32 "
                f"[{config.kv_heads}, block size, {config.head_dim}]"
            )
        sizes.add(fixed[1])
    if len(sizes) != 1 or min(sizes) < 1:
        raise EngineError(f"OpenVINO wants KV blocks of {sorted(sizes)} rows, expected one size of at least 1")
    return sizes.pop()


def _scalar(value: float, dtype: Any) -> Any:
    return ops.constant(np.array(value, dtype))


def _empty(dtype: Any) -> Any:
    return ops.constant(np.zeros(0, dtype))
