"""The token corpora that the repository ships: `training/data/NAME.zip`, without features."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from python_backend.settings import ROOT, load
from training.corpus.shards import corpus_folder, pack, unpack

DATA = ROOT / "training" / "data"
LIMIT_MB = 20

app = typer.Typer(add_completion=False)
Name = Annotated[str, typer.Argument(help="A corpus: train, held_out.")]


@app.command("pack")
def pack_command(name: Name) -> None:
    """Put a corpus of the cache into the repository."""
    archive = DATA / f"{name}.zip"
    pack(corpus_folder(load().cache_dir, name), archive)
    size_mb = archive.stat().st_size / 1e6
    Console().print(f"{archive.name}: {size_mb:.1f} MB")
    if size_mb > LIMIT_MB:
        raise typer.BadParameter(f"{archive.name} has {size_mb:.1f} MB, limit {LIMIT_MB}: ship fewer shards")


@app.command("unpack")
def unpack_command(name: Name) -> None:
    """Put a corpus of the repository into the cache; features are computed again when they are read."""
    unpack(DATA / f"{name}.zip", corpus_folder(load().cache_dir, name))


if __name__ == "__main__":
    app()
