"""Which of several compiled copies takes a pass: the one that is at its shapes already, else the oldest."""

from __future__ import annotations

from python_backend.engines.openvino_requests import Requests


def test_shapes_that_return_find_the_copy_that_had_them():
    pool = Requests(["a", "b", "c"])
    assert [pool.at(shape) for shape in (1, 2, 1, 8, 2, 1, 8)] == ["a", "b", "a", "c", "b", "a", "c"]


def test_new_shapes_take_the_copy_that_was_used_longest_ago():
    pool = Requests(["a", "b"])
    assert [pool.at(shape) for shape in (1, 2, 1, 3, 1, 2)] == ["a", "b", "a", "b", "a", "b"]


def test_one_copy_serves_all():
    assert [Requests(["a"]).at(shape) for shape in (1, 2, 1)] == ["a"] * 3
