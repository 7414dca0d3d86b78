"""One request to send: neutral of the protocol, so that it can be shrunk, printed, and sent again."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field
from typing import Any

ROUTES = ("grpc", "unary", "generate", "generate_stream", "infer")
SIZES = {"BOOL": 1, "UINT8": 1, "INT32": 4, "INT64": 8, "UINT64": 8}
FLOATS = {"FP16": "<e", "FP32": "<f", "FP64": "<d"}  # struct's codes


@dataclass(frozen=True)
class Given:
    """An input as a client gives it. values: anything that JSON can say; gRPC packs them as `datatype`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """route: one of ROUTES. body: sent as it is instead of all else, over HTTP. leave: the client closes after so many
    responses of a stream, or at once where there is one response only."""

    route: str
    model: str
    inputs: tuple[Given, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    request_id: str = ""
    body: bytes | None = None
    leave: int | None = None

    @property
    def over_http(self) -> bool:
        return self.route in ("generate", "generate_stream", "infer")

    def to_json(self) -> str:
        """ASCII; bytes become {"hex": …}, and NaN and lone surrogates stay what they are."""
        return json.dumps(asdict(self), default=lambda value: {"hex": value.hex()})

    @classmethod
    def from_json(cls, text: str) -> Case:
        parts = json.loads(text, object_hook=lambda d: bytes.fromhex(d["hex"]) if d.keys() == {"hex"} else d)
        inputs = tuple(
            Given(g["name"], g["datatype"], tuple(g["shape"]), tuple(g["values"])) for g in parts.pop("inputs")
        )
        return cls(inputs=inputs, **parts)


def document(case: Case) -> bytes:
    """The HTTP body."""
    if case.body is not None:
        return case.body
    whole: dict[str, Any] = {"id": case.request_id} if case.request_id else {}
    if case.route == "infer":
        whole["inputs"] = [
            {"name": g.name, "datatype": g.datatype, "shape": g.shape, "data": [_jsonable(v) for v in g.values]}
            for g in case.inputs
        ]
    else:
        for g in case.inputs:
            values = [_jsonable(v) for v in g.values]
            whole[g.name] = values[0] if len(values) == 1 else values
    if case.parameters:
        whole["parameters"] = {name: _jsonable(value) for name, value in case.parameters.items()}
    return json.dumps(whole).encode()


def pack(datatype: str, values: tuple[Any, ...]) -> bytes:
    """Triton's raw tensor contents. Total: a value of another type becomes some bytes of the right length."""
    return b"".join(_pack(datatype, value) for value in values)


def as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")


def _pack(datatype: str, value: Any) -> bytes:
    if datatype not in SIZES and datatype not in FLOATS:
        raw = as_bytes(value)
        return struct.pack("<I", len(raw)) + raw
    number = value if isinstance(value, int | float) else len(str(value))
    if code := FLOATS.get(datatype):
        try:
            return struct.pack(code, float(number))
        except OverflowError:
            return struct.pack(code, float("inf"))
    size = SIZES[datatype]
    whole = int(number) if number == number and abs(number) != float("inf") else 0
    return (whole % 2 ** (8 * size)).to_bytes(size, "little")


def _jsonable(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value
