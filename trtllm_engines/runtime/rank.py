"""The process of a rank other than 0, as `ranks` says. Not run yet, on no machine."""

from __future__ import annotations

import torch

from python_backend.engine import EngineError
from python_backend.settings import load
from trtllm_engines.runtime.config import EngineConfig
from trtllm_engines.runtime.engine import check_fits, used
from trtllm_engines.runtime.passes import Passes
from trtllm_engines.runtime.ranks import follow, join_world


def main() -> None:
    """Raises EngineError where settings, engine and ranks do not fit together."""
    settings = load()
    target, coordinator = settings.target, settings.coordinator
    if target.engine_folder is None:
        raise EngineError("target.engine_folder is not set: the ranks read the same settings as the server")
    built = EngineConfig.read(target.engine_folder)
    world = join_world(built.tensor_parallel)
    if world is None:
        raise EngineError(f"'{target.engine_folder}' has one rank, and the server runs it: start no other")
    rank = world.Get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    check_fits(built, target, coordinator, device)
    follow(world, Passes(target.engine_folder, used(built, coordinator), target.feature_layers, device, rank))


if __name__ == "__main__":
    main()
