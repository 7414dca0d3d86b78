"""Chat turns from a client's JSON: checked as a whole before anything is done with them."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from python_backend.coordinator.bounds import MAX_JSON_DEPTH, shown
from python_backend.coordinator.request import RequestError, invalid

ROLES = ("system", "user", "assistant")
TEXTS = ("content", "name", "reasoning_content")  # what a template may read, beside the role
MEMBERS = ("role", *TEXTS)

Turn = dict[str, str]

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)  # ends at the text's end at the latest
_BRACKET = re.compile(r"[\[\]{}]")


def parse_messages(text: str, max_turns: int, max_bytes: int) -> list[Turn]:
    """Chat turns: a non-empty list of {"role": …, "content": …}, content a string or a list of text parts.

    Members without a value (null, "", [], {}) are left out. Raises RequestError (INVALID_ARG), whatever the text is.
    """
    if len(text.encode()) > max_bytes:
        raise invalid(f"messages has {len(text.encode())} bytes, the limit is {max_bytes}")
    turns = _load(text)
    if not isinstance(turns, list) or not turns:
        raise invalid("messages must be a non-empty JSON list of chat turns")
    if len(turns) > max_turns:
        raise invalid(f"messages has {len(turns)} turns, the limit is {max_turns}")
    return [_turn(f"messages[{i}]", turn) for i, turn in enumerate(turns)]


def _load(text: str) -> Any:
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_JSON_DEPTH:
            raise invalid(f"messages is nested {depth} levels deep or more, the limit is {MAX_JSON_DEPTH}")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise invalid(f"messages is not valid JSON: {error}") from None


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, member in members:
        if name in value:
            raise invalid(f"messages has an object with the member {shown(name)} twice")
        value[name] = member
    return value


def _no_constant(name: str) -> NoReturn:
    raise invalid(f"messages is not valid JSON: it holds {name}")


def _turn(where: str, turn: Any) -> Turn:
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        raise invalid(f"{where} must be an object with the strings 'role' and 'content'")
    if turn["role"] not in ROLES:
        raise invalid(f"{where} has the role {shown(turn['role'])}: expected system, user or assistant")
    if not isinstance(turn.get("content"), str | list):
        raise invalid(f"{where} must be an object with the strings 'role' and 'content'")
    if other := [name for name, value in turn.items() if value not in (None, "", [], {}) and name not in MEMBERS]:
        raise invalid(f"{where} has the member {shown(other[0])}: expected {', '.join(MEMBERS)}")
    texts = {name: _text(f"{where}.{name}", turn[name]) for name in TEXTS if turn.get(name) is not None}
    return {"role": turn["role"], **texts}


def _text(where: str, value: Any) -> str:
    """A string, or the text of content parts, one after the other."""
    if isinstance(value, list) and where.endswith(".content"):
        return "".join(_part(f"{where}[{i}]", part) for i, part in enumerate(value))
    if not isinstance(value, str):
        raise invalid(f"{where} is {shown(value)}: expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"{where} holds half a surrogate pair at character {error.start}") from None
    return value


def _part(where: str, part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise invalid(f"{where} must be an object with the strings 'type' and 'text'")
    if part["type"] != "text":
        raise invalid(f"{where} has the type {shown(part['type'])}: this model takes text only")
    if not isinstance(part.get("text"), str):
        raise invalid(f"{where} must be an object with the strings 'type' and 'text'")
    return _text(f"{where}.text", part["text"])
