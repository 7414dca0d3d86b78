"""A drafter's graphs for OpenVINO, made from the training network's weights.

What each is for, `contract` says. Here the context is a cache in blocks that attention reads and writes where it is,
rows are packed, and as many candidates come out as are asked for. Inputs are int64 unless said. n sequences, R rows.

    context   features [R, F], positions [R] -> keys and values [R, kv_heads * head_dim] of each layer
    block     tokens [n] of the anchors, slot_tokens [R] of each slot which of (mask, tokens...), positions [R],
              together [R] int32 ones, order [D * n] the drafts' rows, draft by draft
              -> waiting [D * n, hidden or Vd]; where no draft depends on the one before: scores, index [D * n, S]
    follow    waiting [n, hidden or Vd], tokens [n] the drafts before -> scores, index [n, S]
    append    features [R, F], tokens [R] that follow, positions [R], order [n] the rows to draft from
              -> scores, index [n, S], carried [n, hidden]
    step      carried [n, hidden], tokens [n] drafted, positions [n] -> the same

All but `context` and a waiting `block` take `candidates`, S. Of follow, append and step there may be a second graph
that looks for candidates with a sketch of the head; it takes `looked_at`, how many tokens the head then scores.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from torch import Tensor, nn

from python_backend.checkpoints.quantised import Floats
from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.layers import DraftLayer, Norm
from python_backend.drafters.recurrent import RecurrentDrafter
from python_backend.drafters.sketch import Sketch
from python_backend.engines.openvino_attention import PagedInputs, cache_parameters, paged_attention, parameter
from python_backend.engines.openvino_ops import Node, Rotation, halves, integers, norm, result
from python_backend.engines.openvino_weights import matrix_node, to_int8

Network = BlockDrafter | RecurrentDrafter


class KeysValues(NamedTuple):
    """What attention reads of R rows, one after the other."""

    keys: Node  # [R, kv_heads * head_dim], rotated
    values: Node


class Matrices:
    """Weights as constants, which all graphs of a drafter share."""

    def __init__(self, eight_bit: bool) -> None:
        """eight_bit: round to 8 bits, one scale an output."""
        self.eight_bit = eight_bit
        self._nodes: dict[tuple[int, torch.Size], tuple[Tensor, Node]] = {}

    def __call__(self, weight: Tensor, raw: bool = False) -> Node:
        """[out, in]. raw: stays in float32. It reads states without a norm, whose outliers would swamp the scale that
        a processor with products of 8 bits gives a group of them."""
        key = weight.data_ptr(), weight.shape
        if key not in self._nodes:
            values = _floats(weight)
            self._nodes[key] = weight, matrix_node([to_int8(values) if self.eight_bit and not raw else values])
        return self._nodes[key][1]


def build_graphs(network: Network, eight_bit: bool, sketch: Sketch | None = None) -> dict[str, ov.Model]:
    """By name; those with a sketch of the head under `sketched` of theirs."""
    matrix = Matrices(eight_bit)
    if isinstance(network, RecurrentDrafter):
        made = {
            "append": RecurrentGraph(network, matrix).append(),
            "step": RecurrentGraph(network, matrix).step(),
        }
        if sketch is not None:
            made[sketched("append")] = RecurrentGraph(network, matrix, sketch).append()
            made[sketched("step")] = RecurrentGraph(network, matrix, sketch).step()
        return made
    made = {"context": BlockGraph(network, matrix).context(), "block": BlockGraph(network, matrix).block()}
    if network.parts.head != "none":
        made["follow"] = BlockGraph(network, matrix).follow()
    if network.parts.head == "correction" and sketch is not None:
        made[sketched("follow")] = BlockGraph(network, matrix, sketch).follow()
    return made


def sketched(graph: str) -> str:
    return f"{graph} by sketch"


class DraftGraph:
    """One graph of a drafter as it is put together: its parameters, and what all of them have in common."""

    def __init__(self, network: Network, matrix: Matrices, sketch: Sketch | None = None) -> None:
        self.config, self.matrix = network.config, matrix
        self.embedding, self.head = network.embedding, network.head
        self.sketch = sketch
        self.cos, self.sin = _floats(network.rotate.cos), _floats(network.rotate.sin)
        self.parameters: list[Node] = []

    def input(self, name: str, *shape: int, dtype: type = np.int64) -> Node:
        """-1 is any size."""
        self.parameters.append(parameter(name, dtype, list(shape)))
        return self.parameters[-1]

    def floats(self, name: str, *shape: int) -> Node:
        return self.input(name, *shape, dtype=np.float32)

    def paged(self) -> PagedInputs:
        paged = PagedInputs.create()
        self.parameters += paged.parameters()
        return paged

    def rotation(self) -> Rotation:
        """Of the rows' positions, an input."""
        return Rotation(self.cos, self.sin, self.input("positions", -1))

    def embed(self, tokens: Node) -> Node:
        return ops.gather(self.matrix(self.embedding), tokens, integers(0))

    def linear(self, x: Node, weight: Tensor, raw: bool = False) -> Node:
        return ops.matmul(x, self.matrix(weight, raw), False, True)

    def norm(self, x: Node, module: nn.Module) -> Node:
        assert isinstance(module, Norm)
        return norm(x, _floats(module.weight), module.epsilon)

    def scaled(self, features: Node, scale: Tensor) -> Node:
        """[R, T * hidden] captured layers of about unit size."""
        return ops.multiply(features, ops.constant(np.repeat(_floats(scale), self.config.hidden_size)[None]))

    def keys_values(self, layer: DraftLayer, keys: Node, values: Node, rotate: Rotation) -> KeysValues:
        """keys, values: [R, kv_heads * head_dim]"""
        shape = integers(-1, self.config.kv_heads, self.config.head_dim)
        keys = ops.reshape(keys, shape, False)
        if layer.key_norm is not None:
            keys = self.norm(keys, layer.key_norm)
        return KeysValues(ops.reshape(rotate(keys), integers(-1, layer.kv_size), False), values)

    def layer(
        self,
        number: int,
        layer: DraftLayer,
        x: Node,
        residual: Node,
        rotate: Rotation,
        paged: PagedInputs,
        together: Node | None = None,
        kept: Node | None = None,
    ) -> Node:
        """[R, hidden] of rows x [R, inputs] of attention. together: see `paged_attention`. kept: rows that anything
        looks at afterwards, by default all; the others only leave their keys and values."""
        config, caches = self.config, cache_parameters(number, self.config)
        self.parameters += caches
        if layer.input_norm is not None:
            x = self.norm(x, layer.input_norm)
        rows, values = halves(self.linear(x, layer.qkv.weight), layer.query_size + layer.kv_size, layer.kv_size)
        rows = ops.reshape(rows, integers(-1, config.heads + config.kv_heads, config.head_dim), False)
        if layer.query_norm is not None and layer.key_norm is not None:
            query_norm, key_norm = (_floats(part.weight) for part in (layer.query_norm, layer.key_norm))
            weight = np.stack([query_norm] * config.heads + [key_norm] * config.kv_heads)
            rows = norm(rows, weight, config.norm_epsilon)
        query, keys = halves(rotate(rows), config.heads, config.kv_heads)
        query = ops.reshape(query, integers(-1, layer.query_size), False)
        keys = ops.reshape(keys, integers(-1, layer.kv_size), False)
        answer = paged_attention(query, keys, values, caches, paged, config, together)
        answer = ops.reshape(answer, integers(-1, layer.query_size), False)
        if kept is not None:
            answer, residual = (ops.gather(rows, kept, integers(0)) for rows in (answer, residual))
        residual = ops.add(residual, self.linear(answer, layer.output.weight))
        both = self.linear(self.norm(residual, layer.mlp_norm), layer.gate_up.weight)
        gate, up = halves(both, config.intermediate_size, config.intermediate_size)
        return ops.add(residual, self.linear(ops.multiply(ops.swish(gate), up), layer.down.weight))

    def best(self, logits: Node) -> list[Node]:
        """Scores and draft indices [rows, S] of the best, S an input."""
        scores, index = ops.topk(logits, self.input("candidates"), 1, "max", "value", "i32").outputs()
        return [result("scores", scores), result("index", index)]

    def drafted(self, hidden: Node) -> list[Node]:
        """Scores and draft indices [rows, S] of the best by the head. hidden: [rows, hidden]

        With a sketch, it says where to look: the head is then read for as many tokens as another input says.
        """
        if self.sketch is None:
            return self.best(self.linear(hidden, self.head))
        down, up = self.sketch
        about = self.linear(self.linear(hidden, down, raw=True), up)  # its small entries meet the largest states
        looked = ops.topk(about, self.input("looked_at"), 1, "max", "value", "i32").output(1)
        rows = ops.gather(self.matrix(self.head), looked, integers(0))  # [rows, looked at, hidden]
        logits = ops.matmul(rows, ops.unsqueeze(hidden, integers(2)), False, False)
        scores, place = ops.topk(
            ops.squeeze(logits, integers(2)), self.input("candidates"), 1, "max", "value", "i32"
        ).outputs()
        return [result("scores", scores), result("index", ops.gather_elements(looked, place, 1))]

    def model(self, name: str, results: list[Node]) -> ov.Model:
        return ov.Model(results, self.parameters, name)


class BlockGraph(DraftGraph):
    """A block drafter as one graph: context, block, and the walk that corrects each slot by the token before it."""

    def __init__(self, network: BlockDrafter, matrix: Matrices, sketch: Sketch | None = None) -> None:
        super().__init__(network, matrix, sketch)
        self.network = network

    def context(self) -> ov.Model:
        network, config = self.network, self.config
        captured = self.scaled(self.floats("features", -1, config.feature_size), network.feature_scale)
        rotate = self.rotation()
        shared = None if network.basis is None else self.linear(captured, network.basis.weight, raw=True)
        layers = ops.reshape(captured, integers(-1, len(config.feature_layers), config.hidden_size), False)
        results = []
        for i, layer in enumerate(network.layers):
            rows = shared
            if network.mix is not None:
                share = _floats(network.mix[i].softmax(-1))[None, :, None]
                own = ops.reduce_sum(ops.multiply(layers, ops.constant(share)), integers(1), False)
                rows = own if shared is None else ops.add(shared, own)
            rows = self.norm(rows, network.context_norm)
            weight = layer.qkv.weight[layer.query_size :] if layer.context_kv is None else layer.context_kv.weight
            both = self.linear(rows, weight)
            keys, values = self.keys_values(layer, *halves(both, layer.kv_size, layer.kv_size), rotate)
            results += [result(f"keys_{i}", keys), result(f"values_{i}", values)]
        return self.model("context", results)

    def block(self) -> ov.Model:
        network, head = self.network, self.network.parts.head
        tokens, slot_tokens = self.input("tokens", -1), self.input("slot_tokens", -1)
        together = self.input("together", -1, dtype=np.int32)
        order = self.input("order", -1)
        paged, rotate = self.paged(), self.rotation()
        anchor = self.embed(tokens)
        masked = ops.concat([ops.constant(_floats(network.mask)[None]), anchor], 0)
        x = ops.gather(masked, slot_tokens, integers(0))
        for i, layer in enumerate(network.layers):
            x = self.layer(i, layer, x, x, rotate, paged, together, order if i + 1 == len(network.layers) else None)
        waiting = self.norm(x, network.final_norm)
        if head == "none":
            return self.model("block", self.drafted(waiting))
        if head == "markov":
            waiting = self.linear(waiting, network.head)
        return self.model("block", [result("waiting", waiting)])

    def follow(self) -> ov.Model:
        network, correction, markov = self.network, self.network.correction, self.network.markov
        width = self.config.hidden_size if correction is not None else self.config.draft_vocabulary_size
        waiting, tokens = self.floats("waiting", -1, width), self.input("tokens", -1)
        if correction is not None:
            token = self.norm(self.embed(tokens), correction.token_norm)
            both = self.linear(
                ops.concat([self.norm(waiting, correction.hidden_norm), token], 1), correction.gate_up.weight
            )
            gate, up = halves(both, self.config.hidden_size, self.config.hidden_size)
            change = self.linear(ops.multiply(ops.swish(gate), up), correction.down.weight)
            return self.model("follow", self.drafted(ops.add(waiting, change)))
        assert markov is not None
        index = network.to_index(torch.arange(self.config.vocabulary_size)).numpy()
        index = np.where(
            index < 0, len(markov.rows.weight) - 1, index
        )  # no search in a sorted table: one of every token
        index = ops.gather(ops.constant(index), tokens, integers(0))
        rows = ops.gather(self.matrix(markov.rows.weight), index, integers(0))
        return self.model("follow", self.best(ops.add(waiting, self.linear(rows, markov.columns.weight))))


class RecurrentGraph(DraftGraph):
    """A recurrent drafter as one graph: context rows and the chain of drafts, each from the one before."""

    def __init__(self, network: RecurrentDrafter, matrix: Matrices, sketch: Sketch | None = None) -> None:
        super().__init__(network, matrix, sketch)
        self.network = network

    def append(self) -> ov.Model:
        captured = self.scaled(self.floats("features", -1, self.config.feature_size), self.network.feature_scale)
        carried = captured if self.network.fuse is None else self.linear(captured, self.network.fuse.weight, raw=True)
        return self.model("append", self._run(carried, self.input("order", -1)))

    def step(self) -> ov.Model:
        return self.model("step", self._run(self.floats("carried", -1, self.config.hidden_size), None))

    def _run(self, carried: Node, order: Node | None) -> list[Node]:
        """One depth of rows. order: those that drafts begin from, by default all."""
        network = self.network
        token = self.embed(self.input("tokens", -1))
        both = ops.concat([self.norm(token, network.token_norm), self.norm(carried, network.hidden_norm)], 1)
        residual = carried if network.join is None else self.linear(both, network.join.weight)
        x = both if network.join is None else residual
        paged, rotate = self.paged(), self.rotation()
        raw = self.layer(0, network.layer, x, residual, rotate, paged, kept=order)
        output = self.norm(raw, network.final_norm)
        return [
            *self.drafted(output),
            result("carried", raw if network.join is None else output),
        ]


def _floats(tensor: Tensor) -> Floats:
    values: Floats = tensor.detach().float().cpu().numpy()
    return values
