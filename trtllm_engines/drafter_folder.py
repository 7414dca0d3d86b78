"""What lies beside a drafter's graphs, and later beside its engines: all of the drafter that is not in them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.drafters.calibration import CALIBRATION, Calibration
from python_backend.drafters.config import CONFIG, DrafterConfig
from python_backend.drafters.network import DraftNetwork
from python_backend.engine import EngineError
from trtllm_engines.pin import DRAFTER_TABLE


@dataclass(frozen=True)
class DrafterFolder:
    """Read from a folder of graphs or engines."""

    config: DrafterConfig
    calibration: Calibration | None
    draft_ids: Tensor  # [Vd] the token of each draft index
    dtype: str  # of the graphs' floats, torch's name
    weights_sha256: str  # of the weights that the graphs were exported from

    @classmethod
    def read(cls, folder: Path) -> DrafterFolder:
        """Raises EngineError where it is no such folder."""
        if not (folder / DRAFTER_TABLE).is_file() or not (folder / CONFIG).is_file():
            raise EngineError(
                f"'{folder}' holds no {CONFIG} with {DRAFTER_TABLE}: export the drafter's graphs again, then "
                "`make engines`"
            )
        with safe_open(folder / DRAFTER_TABLE, framework="pt") as file:
            said = file.metadata()
            draft_ids = file.get_tensor("draft_ids")
        config, calibration = DrafterConfig.read(folder), Calibration.read(folder)
        return cls(config, calibration, draft_ids, said["dtype"], said["weights_sha256"])


def write(folder: Path, network: DraftNetwork, trained: Path, dtype: str) -> None:
    """trained: the folder that the network was loaded from."""
    for name in (CONFIG, CALIBRATION):
        if (trained / name).is_file():
            shutil.copy(trained / name, folder / name)
    metadata = {"dtype": dtype, "weights_sha256": weights_sha256(trained)}
    save_file({"draft_ids": network.draft_ids}, folder / DRAFTER_TABLE, metadata)
