"""Put a trained drafter where Triton serves it from: its weights, configuration, card and curve."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer
from rich.console import Console

from python_backend.checkpoints.checkpoint import RECORD
from python_backend.drafters.calibration import CALIBRATION
from python_backend.drafters.config import CONFIG, WEIGHTS
from python_backend.drafters.sketch import SKETCH
from python_backend.settings import ROOT, load

FILES = (CONFIG, WEIGHTS, "card.json", "curve.csv", "curve.png")


def main(
    run: Annotated[str, typer.Argument(help="Name of the run, see training.fit.train.")],
    model: Annotated[str, typer.Argument(help="Triton model: drafter_mtp, …")],
) -> None:
    source = load().cache_dir / "training" / "runs" / run
    target = ROOT / "model_repository" / model / "1"
    if not target.is_dir():
        raise typer.BadParameter(f"'{model}' is not a model of the repository")
    if missing := [name for name in FILES if not (source / name).is_file()]:
        raise typer.BadParameter(f"'{source}' has no {missing[0]}: the run has not ended")
    for name in FILES:
        shutil.copyfile(source / name, target / name)
    for name in (RECORD, CALIBRATION, SKETCH):  # of the weights that were there before
        (target / name).unlink(missing_ok=True)
    size = sum((target / name).stat().st_size for name in FILES) / 1e6
    Console().print(f"{model}: {size:.1f} MB from {source}", soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
