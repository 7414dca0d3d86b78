"""Writes docs/settings.md from the settings tree itself, so that the page cannot drift."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from python_backend.settings import ROOT, DrafterSettings, Settings

PAGE = ROOT / "docs" / "settings.md"
HEAD = """# Settings

`angelspec.yaml` beside the model repository, or the file that `ANGELSPEC_SETTINGS` names. A variable overrides a key:
`ANGELSPEC_BUDGET__POLICY=fixed`. An unknown key is an error. `python -m build_scripts.settings_doc` writes this page.

| key | type | default | meaning |
|---|---|---|---|
"""


def page() -> str:
    return HEAD + "".join(f"{row}\n" for row in _rows(Settings, ""))


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _rows(kind, f"{prefix}{name}.")
        elif name == "drafters":
            yield from _rows(DrafterSettings, "drafters.NAME.")
        else:
            yield f"| `{prefix}{name}` | {_type(kind)} | {_default(field)} | {field.description or ''} |"


def _type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) is dict:
        return "mapping"
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return text.replace("pathlib.", "").replace("|", "or")


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Path) and value.is_relative_to(ROOT):
        value = value.relative_to(ROOT)
    return f"`{value}`"


def main(check: Annotated[bool, typer.Option(help="only say whether the page is up to date")] = False) -> None:
    """Write docs/settings.md."""
    if check:
        raise typer.Exit(0 if PAGE.read_text() == page() else 1)
    PAGE.write_text(page())


if __name__ == "__main__":
    typer.run(main)
