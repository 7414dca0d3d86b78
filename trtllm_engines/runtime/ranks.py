r"""Tensor parallelism: one process a rank, rank 0 of them in Triton's `target` model. Not run yet, on no machine.

    mpirun --allow-run-as-root --bind-to none \
        -n 1 tritonserver --model-repository=model_repository : -n 3 python3 -m trtllm_engines.runtime.rank

which `build_scripts.serve_engines` runs where a recipe has several GPUs (`trtllm_engines/launch.py`).

All ranks hear of every pass before it starts, with the blocks that rank 0 has chosen for its rows, and run it on their
part of the weights and of the KV heads; NCCL, inside the engine, joins what they computed. Every rank has the whole
logits then, and only rank 0 looks at them.
"""

from __future__ import annotations

import atexit
import importlib
from typing import Any, Protocol

from python_backend.engine import EngineError
from python_backend.protocol import Array, TargetStep
from trtllm_engines.launch import with_ranks
from trtllm_engines.runtime.passes import Layout, Passes

PASS, END = "pass", "end"


class World(Protocol):
    """What is used of mpi4py's communicator."""

    def Get_size(self) -> int: ...  # noqa: N802

    def Get_rank(self) -> int: ...  # noqa: N802

    def bcast(self, message: Any, root: int = 0) -> Any: ...


def join_world(ranks: int) -> World | None:
    """The processes of an engine's ranks, none for one. Raises EngineError where MPI runs another number of them."""
    if ranks == 1:
        return None
    world: World = importlib.import_module("tensorrt_llm._utils").mpi_comm()
    if world.Get_size() != ranks:
        raise EngineError(
            f"the engine is cut into {ranks} ranks, MPI runs {world.Get_size()}: start with "
            f"`{' '.join(with_ranks(['tritonserver', '…'], ranks))}`"
        )
    if world.Get_rank() == 0:
        atexit.register(world.bcast, (END,))
    return world


def announce(world: World, step: TargetStep, wanted: Array, layout: Layout) -> None:
    """Let the other ranks run a pass."""
    world.bcast((PASS, step.encode(), wanted, layout))


def follow(world: World, passes: Passes) -> None:
    """What every rank but 0 does: the passes that rank 0 announces, until it ends."""
    while True:
        kind, *content = world.bcast(None)
        if kind == PASS:
            with passes.on_stream():
                passes.run(TargetStep.decode(content[0]), *content[1:])
        else:
            return
