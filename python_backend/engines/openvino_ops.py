"""Small pieces of OpenVINO graphs over packed rows, shared by the target's network and the drafters'."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as ops

from python_backend.checkpoints.quantised import Floats

Node = Any  # openvino's Node and Output, which its operators take alike


class Rotation:
    """Rotary position embedding of the rows' positions: x cos + (-x2, x1) sin with x = (x1, x2)."""

    def __init__(self, cos: Floats, sin: Floats, position: Node) -> None:
        """cos, sin: [positions, head_dim], sin with the sign of the swap. position: [R] int64."""
        self.cos, self.sin = _rows_at(cos[:, None], position), _rows_at(sin[:, None], position)  # all heads alike

    def __call__(self, x: Node) -> Node:
        """x: [R, heads, head_dim]"""
        first, second = ops.split(x, integers(2), 2).outputs()
        return ops.add(ops.multiply(x, self.cos), ops.multiply(ops.concat([second, first], 2), self.sin))


def _rows_at(table: Floats, position: Node) -> Node:
    return ops.gather(ops.constant(table.astype(np.float32)), position, integers(0))


def norm(x: Node, weight: Floats, epsilon: float) -> Node:
    """Root-mean-square norm over the last axis, as a pattern that the plugin turns into one kernel."""
    mean = ops.reduce_mean(ops.power(x, number(2)), integers(-1), True)
    inverse = ops.divide(number(1), ops.sqrt(ops.add(mean, number(epsilon))))
    return ops.multiply(ops.multiply(x, inverse), ops.constant(weight))


def halves(x: Node, first: int, second: int) -> tuple[Node, Node]:
    """Both parts of axis 1, of these sizes."""
    left, right = ops.variadic_split(x, integers(1), integers(first, second)).outputs()
    return left, right


def result(name: str, node: Node) -> Node:
    """A named output of the graph."""
    output = node.output(0) if hasattr(node, "output") else node
    output.get_tensor().set_names({name})
    return ops.result(output)


def integers(*values: int) -> Node:
    """A scalar for one value, else a vector."""
    return ops.constant(np.array(values if len(values) > 1 else values[0], np.int64))


def number(value: float) -> Node:
    return ops.constant(np.array(value, np.float32))
