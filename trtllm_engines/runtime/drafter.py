"""A drafter whose passes are built engines, in the target's process and on its device."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from python_backend.checkpoints.checkpoint import CheckpointError, weights_sha256
from python_backend.drafters.context import Context
from python_backend.drafters.contract import LENT, contracts
from python_backend.drafters.engine import SessionDrafter
from python_backend.drafters.session import Session
from python_backend.drafters.torch_context import TorchContext
from python_backend.drafters.weights import target_parts
from python_backend.engine import EngineError
from python_backend.engines.hardware import built
from python_backend.protocol import Description, DrafterResult, DrafterStep
from trtllm_engines.drafter_folder import DrafterFolder
from trtllm_engines.pin import CHUNK, LONG_CHUNK
from trtllm_engines.runtime.drafter_serving import BlockEngines, Graphs, RecurrentEngines
from trtllm_engines.runtime.graph_session import GraphSession
from trtllm_engines.runtime.streams import OwnStream


class EngineDrafter(SessionDrafter):
    """A `DrafterEngine` over a folder of built engines."""

    def __init__(self, name: str, folder: Path, checkpoint: Path, slots: int, max_length: int, device: str) -> None:
        """folder: of the engines. checkpoint: the target's, which lends embedding and head.

        Raises EngineError where TensorRT, an engine or what lies beside it is missing or does not fit, CheckpointError
        where the drafter belongs to another target.
        """
        exported = DrafterFolder.read(folder)
        check_target(folder, exported, checkpoint)
        context = Context(exported.config, slots, max_length)
        self.on_stream = OwnStream(torch.device(device))
        with self.on_stream():
            session = self._session(folder, exported, checkpoint, context, device)
        super().__init__(name, context, session, exported.weights_sha256, exported.calibration, device)
        self.build = built(folder, *sorted(file.name for file in folder.glob("*.engine")))

    def describe(self) -> Description:
        return replace(super().describe(), build=self.build)

    def step(self, step: DrafterStep) -> DrafterResult:
        """Append context, then draft. Raises ProtocolError where the step breaks the contract."""
        with self.on_stream():
            return super().step(step)

    def _session(
        self, folder: Path, exported: DrafterFolder, checkpoint: Path, context: Context, device: str
    ) -> Session:
        """Raises ContractError where an engine is built for less than the settings ask."""
        dtype: torch.dtype = getattr(torch, exported.dtype)
        memory = TorchContext(exported.config, context.slots, context.room, dtype, device)
        tensors = lent(checkpoint, exported.draft_ids, dtype, device)
        sessions = load_sessions(folder, exported, device)
        self.scratch = share_scratch(sessions, device)
        check_reach(sessions, memory)
        graphs = Graphs(sessions, dict(zip(LENT, tensors, strict=True)))
        version = importlib.import_module("tensorrt").__version__
        if exported.config.is_block:
            return BlockEngines(graphs, memory, version, sessions["context"].most("rows"))
        return RecurrentEngines(graphs, memory, version)


def load_sessions(folder: Path, exported: DrafterFolder, device: str) -> dict[str, GraphSession]:
    """By the graph's name. Raises EngineError or ContractError for one that cannot be loaded or is another."""
    runtime, on = tensorrt_runtime(device), torch.device(device)
    return {
        contract.name: GraphSession(folder / f"{contract.name}.engine", contract, exported.dtype, on, runtime)
        for contract in contracts(exported.config)
    }


def check_reach(sessions: dict[str, GraphSession], memory: TorchContext) -> None:
    """Raise ContractError where an engine is built for less than this memory holds."""
    needed = {"sequences": memory.slots, "context": memory.rows, "chunk": CHUNK}
    for session in sessions.values():
        inputs = {size for port in session.contract.inputs for size in port.shape if isinstance(size, str)}
        session.check_reach(**{n: size for n, size in needed.items() if n in inputs})
    if "append" in sessions:
        sessions["append"].check_reach(sequences=1, context=memory.rows, chunk=LONG_CHUNK)


def check_target(folder: Path, exported: DrafterFolder, checkpoint: Path) -> None:
    found, expected = weights_sha256(checkpoint), exported.config.target_sha256
    if found != expected:
        raise CheckpointError(
            f"the drafter in '{folder}' was trained for a target with weights {expected[:12]}…, '{checkpoint}' has "
            f"{found[:12]}…: build one for this target"
        )


def lent(checkpoint: Path, draft_ids: Tensor, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """The target's embedding, one tensor for all drafters, and the rows of its head that this one can draft."""
    return _embedding(checkpoint, dtype, device), target_parts(checkpoint).head[draft_ids].to(device, dtype)


@cache
def _embedding(checkpoint: Path, dtype: torch.dtype, device: str) -> Tensor:
    return target_parts(checkpoint).embedding.to(device, dtype)


def share_scratch(sessions: dict[str, GraphSession], device: str) -> Tensor:
    """Memory for what is in between, one for all graphs: they run one after the other."""
    size = max(session.scratch_bytes for session in sessions.values())
    scratch = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
    for session in sessions.values():
        session.use(scratch)
    return scratch


def tensorrt_runtime(device: str) -> Any:
    """Raises EngineError where there is no TensorRT, or the drafter is not to be on the GPU."""
    if device == "cpu" and torch.cuda.is_available():
        raise EngineError("a drafter's engines run on a GPU, its device is cpu: set it to cuda, or its engine to torch")
    try:
        library = importlib.import_module("tensorrt")
    except ImportError as error:
        raise EngineError(
            f"a drafter's engines need TensorRT, which cannot be imported here ({error}): serve from its container, "
            "see docs/h20.md, or set the drafter's engine to torch"
        ) from error
    return library.Runtime(library.Logger(library.Logger.WARNING))
