"""A deserialised TensorRT-LLM engine. The only module that imports TensorRT-LLM, which its container brings along."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from python_backend.engine import EngineError
from trtllm_engines.pin import TENSORRT_LLM
from trtllm_engines.runtime.config import EngineConfig
from trtllm_engines.runtime.contract import WORKSPACE, Declared, check_engine


class Workspace(NamedTuple):
    """Memory in which ranks meet."""

    tensors: dict[str, Tensor]
    buffers: Any  # what the tensor points into; it lives as long as this


class EngineSession:
    """Upstream used: `tensorrt_llm.runtime` Session, TensorInfo (runtime/session.py), `tensorrt_llm._utils`
    torch_dtype_to_trt, trt_dtype_to_torch (_utils.py), `tensorrt` TensorIOMode and ICudaEngine's tensor queries.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        """Raises EngineError where TensorRT-LLM or the engine is missing, or is of another release."""
        self._library = _load_library()
        file = folder / f"rank{rank}.engine"
        if not file.is_file():
            raise EngineError(f"'{folder}' holds no {file.name}: build the engine with `make engines`")
        self._session = self._library.runtime.Session.from_serialized_engine(file.read_bytes())
        self._shapes: list[tuple[int, ...]] = []

    def check(self, config: EngineConfig, captured: Sequence[int]) -> None:
        """Raise ContractError where the engine's tensors are not those of the contract."""
        check_engine(self.declared(), config, captured)

    def declared(self) -> list[Declared]:
        """Every tensor that the engine takes or gives."""
        engine, trt = self._session.engine, importlib.import_module("tensorrt")
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        return [
            Declared(
                name,
                engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT,
                _name_of(self._library._utils.trt_dtype_to_torch(engine.get_tensor_dtype(name))),
                tuple(engine.get_tensor_shape(name)),
            )
            for name in names
        ]

    def all_reduce_workspace(self, ranks: int, rank: int) -> Workspace:
        """The input that an engine of several ranks has more, by tensorrt_llm/plugin/plugin.py."""
        if ranks == 1:
            return Workspace({}, None)
        helper = importlib.import_module("tensorrt_llm.plugin").CustomAllReduceHelper
        mapping = self._library.Mapping(world_size=ranks, rank=rank, tp_size=ranks)
        buffers, tensor = helper.allocate_workspace(mapping, helper.max_workspace_size_auto(ranks))
        return Workspace({WORKSPACE: tensor}, buffers)

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], stream: int) -> None:
        """Queue a pass on a CUDA stream; its outputs are there when the stream gets to them."""
        shapes = [tuple(tensor.shape) for tensor in inputs.values()]
        if shapes != self._shapes:
            self._shapes = []  # should this fail, the engine knows only some of them
            info, dtype = self._library.runtime.TensorInfo, self._library._utils.torch_dtype_to_trt
            described = [info(name, dtype(tensor.dtype), tuple(tensor.shape)) for name, tensor in inputs.items()]
            if self._session.infer_shapes(described) is None:
                raise EngineError("TensorRT refused the shapes of a pass; the server's log has its reason")
            self._shapes = shapes
        if not self._session.run(dict(inputs), dict(outputs), stream):
            raise EngineError("TensorRT did not take a pass; the server's log has its reason")


def _load_library() -> Any:
    try:
        library = importlib.import_module("tensorrt_llm")
    except ImportError as error:
        raise EngineError(
            f"target.engine tensorrt_llm needs TensorRT-LLM {TENSORRT_LLM}, which cannot be imported here ({error}): "
            "serve from its Triton container, see docs/h20.md"
        ) from error
    if library.__version__ != TENSORRT_LLM:
        raise EngineError(f"TensorRT-LLM is {library.__version__}, expected {TENSORRT_LLM}: serve from its container")
    for name in ("runtime", "_utils"):
        importlib.import_module(f"tensorrt_llm.{name}")
    return library


def _name_of(dtype: Any) -> str:
    """float32 of torch.float32."""
    return str(dtype).removeprefix("torch.")
