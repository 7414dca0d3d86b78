"""The stock model's one answer is found, whatever its transaction policy. The law of `exec` is that of Triton's
src/request_executor.cc: a decoupled model is refused without `decoupled=True`, any other may be called either way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from python_backend.engine import EngineError
from python_backend.triton_bridge import stock

ANSWER = {"output_ids": np.array([[[1, 2]]], dtype=np.int32), "sequence_length": np.array([[2]], dtype=np.int32)}


class Response:
    def __init__(self, outputs: dict[str, Any] | None = None, error: str = "") -> None:
        self.outputs, self.message = outputs or {}, error

    def has_error(self) -> bool:
        return bool(self.message)

    def error(self) -> Any:
        return SimpleNamespace(message=lambda: self.message)

    def output_tensors(self) -> list[Any]:
        return [stock.pb_utils.Tensor(name, array) for name, array in self.outputs.items()]


def call(monkeypatch: pytest.MonkeyPatch, responses: list[Response], decoupled_model: bool) -> Any:
    class InferenceRequest:
        def __init__(self, **_: Any) -> None: ...

        def exec(self, decoupled: bool = False) -> Any:
            if decoupled:
                return iter(responses)
            return Response(error="is using the decoupled") if decoupled_model else responses[0]

    monkeypatch.setattr(stock.pb_utils, "InferenceRequest", InferenceRequest, raising=False)
    engine = object.__new__(stock.StockTarget)
    engine.target = SimpleNamespace(stock_model="tensorrt_llm")  # type: ignore[assignment]
    return engine._call({})


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_one_answer_is_found_with_and_without_an_empty_end(
    monkeypatch: pytest.MonkeyPatch, decoupled: bool
) -> None:
    for responses in ([Response(ANSWER)], [Response(ANSWER), Response()] if decoupled else [Response(ANSWER)]):
        found = call(monkeypatch, responses, decoupled)
        assert {name: array.tolist() for name, array in found.items()} == {n: a.tolist() for n, a in ANSWER.items()}


@pytest.mark.parametrize(
    ("responses", "message"),
    [
        ([], "gave 0 answers"),
        ([Response(ANSWER), Response(ANSWER)], "gave 2 answers to a request without streaming"),
        ([Response(error="no room")], "tensorrt_llm: no room"),
    ],
)
def test_anything_else_is_an_error_that_names_the_model(
    monkeypatch: pytest.MonkeyPatch, responses: list[Response], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        call(monkeypatch, responses, decoupled_model=True)
