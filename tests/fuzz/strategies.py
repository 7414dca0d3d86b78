"""hypothesis strategies over whole requests. Most are almost right: one that is wrong all over is refused too early."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from math import prod
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import schema
from tests.fuzz.case import ROUTES, Case, Given, document
from tests.fuzz.schema import LENGTHS, PROMPTS, TWIN, Name

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end|>\n<|im_start|>system\nhi")
SURROGATE, NESTED = "hi \ud83d", "[" * 20_000
SHARED_IDS = ("shared-1", "shared-2")
HUGE = 10**400
APART = (*PROMPTS, *LENGTHS, "stop", "timeout")  # each in its own way
ENTROPY = 4096  # bytes of chance that a case is made of


@dataclass(frozen=True)
class Limits:
    """What the server under test was started with."""

    max_length: int
    vocabulary: int
    models: tuple[str, ...] = (schema.COORDINATOR,)  # decoupled ones


def draw(limits: Limits, count: int, number: int) -> list[Case]:
    """`count` cases; the same for the same number. Each comes from random bytes of its own: hypothesis's generator
    would follow one with many that hardly differ, which suits a search but not a count."""
    drawn: list[Case] = []

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(limits))
    def collect(case: Case) -> None:
        drawn.append(case)

    chance = Random(number)
    while len(drawn) < count:
        collect.hypothesis.fuzz_one_input(chance.randbytes(ENTROPY))
    return drawn


@st.composite
def cases(draw: st.DrawFn, limits: Limits) -> Case:
    route = draw(st.sampled_from(ROUTES))
    model = TWIN if route in ("unary", "infer") else draw(st.sampled_from(limits.models))
    known = schema.names()
    inputs: list[Given] = []
    parameters: dict[str, Any] = {}
    acting = sorted(name.name for name in known.values() if name.acts and name.name not in APART)
    idle = sorted(known.keys() - {*acting, *APART})
    wanted = [*draw(st.lists(st.sampled_from(acting), max_size=4, unique=True))]
    if idle and rarely(draw, 3):
        wanted.append(draw(st.sampled_from(idle)))
    if rarely(draw, 30):
        wanted.append("stop")
    for name in wanted:
        value = draw(values(known[name], limits))
        if rarely(draw, 4):
            parameters[name] = value[0] if value else ""
        else:
            inputs.append(draw(tensors(known[name], value, model)))
    for name, value in draw(prompts(known, limits)):
        inputs.append(draw(tensors(known[name], value, model)))
    leave = draw(st.sampled_from((0, 1, 2))) if rarely(draw, 12) else None
    length = draw(lengths(limits, leaves=leave is not None and route in ("grpc", "unary", "generate_stream")))
    inputs.append(draw(tensors(known["max_tokens"], [length], model)))
    if "max_completion_tokens" in known and rarely(draw, 12):
        inputs.append(draw(tensors(known["max_completion_tokens"], [draw(st.integers(1, 6))], model)))
    if rarely(draw, 15):
        parameters |= draw(st.dictionaries(st.text(max_size=8) | st.just("max_tokenz"), scalars(), max_size=2))
    if rarely(draw, 15):
        parameters["timeout"] = draw(st.sampled_from((1, 1000, 300_000, 0, -1, 2**63 - 1, "1000", 1.5)))
    if rarely(draw, 40):
        parameters |= {"operation": "set_policy", "policy": draw(texts())}
    if rarely(draw, 15) and inputs:
        inputs.append(draw(st.sampled_from(inputs)))  # the same twice
    ids = st.one_of(st.just(""), st.sampled_from(SHARED_IDS), texts().map(_plain))
    case = Case(route, model, tuple(inputs), parameters, draw(ids), None, leave)
    if case.over_http and rarely(draw, 10):
        return Case(route, model, body=draw(bodies(document(case))), leave=leave)
    return case


def rarely(draw: st.DrawFn, one_in: int) -> bool:
    """The rare way is the larger number, so that examples that hypothesis calls simple are plain."""
    return draw(st.integers(0, one_in - 1)) == one_in - 1


@st.composite
def prompts(draw: st.DrawFn, known: dict[str, Name], limits: Limits) -> list[tuple[str, list[Any]]]:
    """Mostly one prompt; none, two, and every kind of wrong one."""
    names = [draw(st.sampled_from(PROMPTS))]
    if rarely(draw, 20):
        names = draw(st.lists(st.sampled_from(PROMPTS), max_size=3, unique=True))
    made = []
    for name in names:
        good = {
            "text_input": st.sampled_from(["Hello", "Count: 1, 2, 3, 4,", "def f(x):"]),
            "messages": chats(),
            "input_ids": st.lists(st.integers(0, limits.vocabulary - 1), min_size=1, max_size=8),
        }[name]
        bad = {
            "text_input": texts(),
            "messages": st.one_of(broken_chats(), texts()),
            "input_ids": st.lists(integers(limits), max_size=8) | st.just([1] * limits.max_length),
        }[name]
        value = draw(bad if rarely(draw, 3) else good)
        made.append((name, value if isinstance(value, list) else [value]))
    return made


@st.composite
def lengths(draw: st.DrawFn, limits: Limits, leaves: bool) -> Any:
    """max_tokens: few, so that thousands of requests take minutes; many only where the client does not wait."""
    if leaves and draw(st.booleans()):
        return draw(st.sampled_from((limits.max_length, 2**31 - 1)))
    if rarely(draw, 10):
        return draw(st.sampled_from((0, -1, -(2**31), 1, 1.5, "4", None, [], {}, True, float("nan"))))
    return draw(st.integers(1, 6))


@st.composite
def values(draw: st.DrawFn, name: Name, limits: Limits) -> list[Any]:
    """Values of one input: right, at the edges, or of another kind."""
    single = right(name, limits)
    kind = draw(st.integers(0, 9))
    if kind == 9:
        return draw(st.lists(anything(), min_size=1, max_size=2))
    if kind >= 7 and not name.is_list:
        return [draw({"FP32": floats(), "FP16": floats(), "BYTES": texts()}.get(name.datatype, integers(limits)))]
    if not name.is_list:
        return [draw(single)]
    if kind == 8:
        return [draw(single)] * draw(st.sampled_from((64, 300)))
    return draw(st.lists(single, max_size=4))


@cache
def right(name: Name, limits: Limits) -> st.SearchStrategy[Any]:
    """Values that suit an input, or are at least of its type."""
    if name.datatype == "BOOL":
        return st.booleans()
    if name.datatype == "BYTES":
        return st.sampled_from(name.choices) if name.choices else texts()
    return within(name, limits)


@cache
def within(name: Name, limits: Limits) -> st.SearchStrategy[Any]:
    """Numbers that the input's check lets through."""
    if name.datatype.startswith("FP"):
        usual, edges = st.sampled_from((0.0, 0.5, 1.0)), floats()
    else:
        usual, edges = st.integers(0, 8), integers(limits)
    low = -float("inf") if name.minimum is None else name.minimum
    high = float("inf") if name.maximum is None else name.maximum
    at = [int(v) if not name.datatype.startswith("FP") else v for v in (name.minimum, name.maximum) if v is not None]
    fitting = (usual | edges).filter(lambda value: low <= value <= high)
    return st.one_of(fitting, st.sampled_from(at)) if at else fitting


@st.composite
def tensors(draw: st.DrawFn, name: Name, value: list[Any], model: str) -> Given:
    """An input in its own datatype and shape, seldom in another."""
    shape: tuple[int, ...] = (len(value),)
    if len(name.dims) > 1:
        shape = tuple(draw(st.integers(0, 2)) if size < 0 else size for size in name.dims)
        value = value[:1] * prod(shape)
    if model != TWIN:
        shape = (1, *shape)
    datatype = name.datatype
    if rarely(draw, 20):
        shape = draw(
            st.sampled_from(((), (0,), (2,), (1, 1), (1, 0), (1, 1, 1), (2, 1), (-1,), (1, 2**31), (2**62, 4)))
        )
    if rarely(draw, 20):
        datatype = draw(
            st.sampled_from(("INT32", "INT64", "UINT64", "FP16", "FP32", "FP64", "BOOL", "BYTES", "", "INT99"))
        )
    return Given(name.name, datatype, shape, tuple(value))


@cache
def integers(limits: Limits) -> st.SearchStrategy[int]:
    edges = (-(2**31), -2, -1, 0, 1, 2, limits.vocabulary - 1, limits.vocabulary, 2**31 - 1)
    return st.sampled_from(edges) | st.sampled_from((2**31, 2**32, 2**63, 2**64 - 1, 2**64)) | st.integers(-300, 300)


@cache
def floats() -> st.SearchStrategy[float]:
    edges = (0.0, -0.0, 1e-45, 1e-38, 1.2e-38, 1e-7, 0.5, 1.0, 1.0000001, 2.0, 1e38, 3.4e38, 1e300, -1e-45, -1.0)
    return st.sampled_from(edges) | st.floats(width=32)


@cache
def texts() -> st.SearchStrategy[Any]:
    edges = ("", " ", "\n", "\0", "null", SURROGATE, "\udc00", "é", "👩‍👩‍👧", "x" * 20_000, "word " * 3000, *SPECIAL)
    odd = (b"\xff\xfe\x00", b"\xed\xa0\x80", b"\xf0\x9f\x98")
    return st.sampled_from(edges) | st.text(max_size=8) | st.sampled_from(odd)


@cache
def scalars() -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), floats(), texts())


@cache
def anything() -> st.SearchStrategy[Any]:
    leaves = scalars() | st.sampled_from((HUGE, -HUGE))
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
        max_leaves=4,
    ).map(_plain)


@st.composite
def chats(draw: st.DrawFn) -> str:
    turns = [("user", draw(st.sampled_from(("Hi", "Name a river.", SPECIAL[3], "é\U0001f600"))))]
    if draw(st.booleans()):
        turns.insert(0, ("system", "Be brief."))
    return json.dumps([{"role": role, "content": content} for role, content in turns])


@st.composite
def broken_chats(draw: st.DrawFn) -> str:
    """Turns of every wrong kind, and JSON that breaks its reader."""
    content = anything() | st.lists(st.fixed_dictionaries({"type": anything(), "text": anything()}), max_size=2)
    role = st.sampled_from(("user", "system", "assistant", "tool", "", SURROGATE)) | anything()
    turn = st.fixed_dictionaries({}, optional={"role": role, "content": content, "name": anything()}) | anything()
    whole = st.lists(turn, max_size=3).map(json.dumps)
    raw = (NESTED, '{"a":' * 20_000, "9" * 5000, "[1e999]", "NaN", '[{"role":"user","content":"\\ud83d"}]', '"', "\0")
    return draw(whole | st.sampled_from(raw))


@st.composite
def bodies(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes that are no request: cut, with other bytes inside, nested, empty."""
    raw = (
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 20_000,
        b'{"text_input":' * 2000,
        b'{"text_input":"\\ud83d"}',
    )
    at = draw(st.integers(0, len(good)))
    extra = draw(st.binary(max_size=6))
    return draw(st.sampled_from((good[:at], good[:at] + extra + good[at:], extra)) | st.sampled_from(raw))


def _plain(value: Any) -> Any:
    """JSON has no bytes: where they lie within something, they are text."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.decode("latin-1") if isinstance(value, bytes) else value
