"""What a request may hold, read from the code and the configurations, so that what is added there is tried here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from python_backend.coordinator import request
from python_backend.settings import ROOT

REPOSITORY = ROOT / "model_repository"
COORDINATOR = "angelspec"
DECOUPLED = (COORDINATOR, "ensemble", "tensorrt_llm_bls")  # those that a server has are tried
TWIN = "angelspec_infer"
PROMPTS = ("text_input", "messages", "input_ids")
LENGTHS = ("max_tokens", "max_completion_tokens")  # what a request costs


@dataclass(frozen=True)
class Name:
    """An input: its Triton datatype and dimensions without the batch axis, and what its check says of its values."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    acts: bool = True  # False: known for other servers' sake, refused unless off

    @property
    def is_list(self) -> bool:
        return self.dims == (-1,)


TYPES = {"integer": "INT64", "number": "FP32", "boolean": "BOOL"}  # of what is a request parameter only


@cache
def names() -> dict[str, Name]:
    """Every input of the coordinator, and every other name that its requests know."""
    path = REPOSITORY / COORDINATOR / "config.pbtxt"
    config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    known = request.Fields.model_json_schema()["properties"]
    aliases = getattr(request, "ALIASES", {})
    found = {}
    for entry in config.input:
        datatype = model_config_pb2.DataType.Name(entry.data_type).removeprefix("TYPE_")
        acting = aliases.get(entry.name, entry.name)
        rules = _rules(known.get(acting, {})) | {"acts": acting in known}
        found[entry.name] = Name(entry.name, "BYTES" if datatype == "STRING" else datatype, tuple(entry.dims), **rules)
    for name in known.keys() - found.keys():
        found[name] = Name(name, TYPES.get(known[name].get("type"), "BYTES"), (1,), **_rules(known[name]))
    return dict(sorted(found.items()))


def _rules(entry: dict[str, Any]) -> dict[str, Any]:
    """Limits out of a property of a JSON schema, whose alternatives are looked through."""
    rules: dict[str, Any] = {}
    for part in [entry, *entry.get("anyOf", ())]:
        for key, to in (("minimum", "minimum"), ("exclusiveMinimum", "minimum"), ("maximum", "maximum")):
            if key in part:
                rules[to] = part[key]
        if "exclusiveMaximum" in part:
            rules["maximum"] = part["exclusiveMaximum"] - 1
        choices = part.get("enum") or ([part["const"]] if isinstance(part.get("const"), str) else [])
        rules["choices"] = (*rules.get("choices", ()), *(c for c in choices if isinstance(c, str)))
    return rules
