"""A built engine of one drafter graph, by TensorRT's own Python API: names, types and shapes checked, then queued.

Upstream used, as `trtllm_engines/stubs/tensorrt` has it: Logger, Runtime, ICudaEngine's tensor and profile queries,
IExecutionContext with memory of ours. TensorRT sees addresses alone, so what a tensor is has to be checked here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from python_backend.drafters.contract import GraphContract, Port
from python_backend.engine import EngineError
from trtllm_engines.runtime.contract import ContractError, Declared, Memory, Rule, check_fed, differences

if TYPE_CHECKING:
    import tensorrt as trt

ADDRESS = 256  # bytes that an address must be a multiple of; a device's allocations are
OURS = "python_backend/drafters/contract.py, of this repository"

Sizes = dict[str, int]  # by the names of dynamic dimensions


class Profile(NamedTuple):
    """Ranges that an engine has kernels for, and a context that runs them."""

    least: Sizes
    most: Sizes
    context: trt.IExecutionContext
    sizes: Sizes  # that the context was told last

    def fits(self, sizes: Sizes) -> bool:
        return all(self.least[name] <= size <= self.most[name] for name, size in sizes.items())


class GraphSession:
    """Runs one graph. All calls come from one thread, and queue on torch's current stream."""

    def __init__(
        self, file: Path, contract: GraphContract, dtype: str, device: torch.device, runtime: trt.Runtime
    ) -> None:
        """dtype: of the graph's floats. runtime: TensorRT's, which outlives the engine.

        Raises EngineError where TensorRT cannot load the engine, ContractError where its tensors are others.
        """
        if not file.is_file():
            raise EngineError(f"'{file}' is not there: build the drafter's engines with `make engines`")
        self.file, self.contract, self.dtype, self.device = file, contract, dtype, device
        self._library, self._runtime = importlib.import_module("tensorrt"), runtime
        engine = runtime.deserialize_cuda_engine(file.read_bytes())
        if engine is None:
            raise EngineError(
                f"TensorRT {self._library.__version__} cannot load '{file}', its log has the reason: build the engine "
                "with this release, on this GPU"
            )
        self._engine: trt.ICudaEngine = engine
        self._rules = {port.name: self._rule(port) for port in (*contract.inputs, *contract.outputs)}
        self._check()
        self._profiles = [self._profile(i) for i in range(self._engine.num_optimization_profiles)]

    @property
    def scratch_bytes(self) -> int:
        """Memory that a pass needs for what is in between."""
        return int(self._engine.device_memory_size_v2)

    def use(self, scratch: Tensor) -> None:
        """scratch: [at least scratch_bytes] uint8; engines that run one after the other share it."""
        for profile in self._profiles:
            profile.context.set_device_memory(scratch.data_ptr(), scratch.numel())

    def most(self, dimension: str) -> int:
        """Largest size of a dynamic dimension."""
        return max(profile.most[dimension] for profile in self._profiles)

    def check_reach(self, **needed: int) -> None:
        """Raise ContractError where no profile reaches so far in all of these dimensions."""
        if not any(profile.fits(needed) for profile in self._profiles):
            built = " or ".join(str({name: profile.most[name] for name in needed}) for profile in self._profiles)
            raise ContractError(f"'{self.file}' is built for {built}, the settings need {needed}: build it again")

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Queue a pass. Returns its outputs, new tensors that are there when the stream gets to them.

        Raises ContractError for a missing or unknown input, a wrong type or shape, and sizes that the engine is not
        built for.
        """
        fed = {name: dense(tensor) for name, tensor in inputs.items()}
        sizes = self._sizes(fed)
        profile = next((p for p in self._profiles if p.fits(sizes)), None)
        if profile is None:
            raise ContractError(f"'{self.file}' is not built for {sizes}: build it again")
        if profile.sizes != sizes:
            self._tell(profile, fed, sizes)
        outputs = {
            port.name: torch.empty(
                resolved(port, sizes), dtype=getattr(torch, port.dtype(self.dtype)), device=self.device
            )
            for port in self.contract.outputs
        }
        for name, tensor in (fed | outputs).items():
            if not profile.context.set_tensor_address(name, tensor.data_ptr()):
                raise EngineError(f"TensorRT did not take the address of '{name}' of '{self.file}'; its log has why")
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0
        if not profile.context.execute_async_v3(stream):
            raise EngineError(f"TensorRT did not take a pass of '{self.file}'; the server's log has its reason")
        return outputs

    def _sizes(self, fed: Mapping[str, Tensor]) -> Sizes:
        """The dynamic dimensions of a pass, once all its inputs have been found right."""
        names = {port.name for port in self.contract.inputs}
        if missing := names - fed.keys():
            raise ContractError(f"graph '{self.contract.name}' has no input '{min(missing)}'")
        if unknown := fed.keys() - names:
            raise ContractError(f"graph '{self.contract.name}' knows no input '{min(unknown)}'")
        sizes: Sizes = {}
        for port in self.contract.inputs:
            for size, given in zip(port.shape, fed[port.name].shape, strict=False):
                if isinstance(size, str):
                    sizes.setdefault(size, given)
        for name, tensor in fed.items():
            memory: Memory = "device" if tensor.device.type == self.device.type else "host"
            check_fed(name, name_of(tensor.dtype), tuple(tensor.shape), memory, self._rules[name], sizes)
        return sizes

    def _tell(self, profile: Profile, fed: Mapping[str, Tensor], sizes: Sizes) -> None:
        """Let the context know the shapes of a pass, and see that it expects the outputs that we do."""
        profile.sizes.clear()  # should this fail, the context knows only some of them
        for name, tensor in fed.items():
            if not profile.context.set_input_shape(name, tuple(tensor.shape)):
                raise EngineError(f"TensorRT refused {list(tensor.shape)} for '{name}' of '{self.file}'; see its log")
        for port in self.contract.outputs:
            found = tuple(profile.context.get_tensor_shape(port.name))
            if found != resolved(port, sizes):
                raise ContractError(
                    f"'{self.file}' gives '{port.name}' of shape {list(found)}, expected {list(resolved(port, sizes))}"
                )
        profile.sizes.update(sizes)

    def _check(self) -> None:
        """Raise ContractError with everything in which the engine differs from its graph's contract."""
        inputs, outputs = ([self._rules[port.name] for port in ports] for ports in self.contract[1:])
        if problems := differences(self._declared(), inputs, outputs):
            raise ContractError(f"'{self.file}' does not fit: {'; '.join(problems)}. Export and build it again")

    def _declared(self) -> list[Declared]:
        engine, modes = self._engine, self._library.TensorIOMode
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        return [
            Declared(
                name,
                engine.get_tensor_mode(name) == modes.INPUT,
                DTYPES.get(engine.get_tensor_dtype(name).name, engine.get_tensor_dtype(name).name),
                tuple(engine.get_tensor_shape(name)),
            )
            for name in names
        ]

    def _profile(self, index: int) -> Profile:
        strategy = self._library.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine.create_execution_context(strategy)
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else 0
        if context is None or not context.set_optimization_profile_async(index, stream):
            raise EngineError(f"TensorRT cannot make a context for '{self.file}'; the server's log has its reason")
        least, most = {}, {}
        for port in self.contract.inputs:
            lowest, _, highest = self._engine.get_tensor_profile_shape(port.name, index)
            for size, low, high in zip(port.shape, lowest, highest, strict=True):
                if isinstance(size, str):
                    least[size], most[size] = low, high
        return Profile(least, most, context, {})

    def _rule(self, port: Port) -> Rule:
        return Rule(port.name, port.dtype(self.dtype), port.shape, "device", self.contract.name, OURS)


# TensorRT's names of types, by DataType's members
DTYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT32": "int32", "INT64": "int64"}


def dense(tensor: Tensor) -> Tensor:
    """The tensor where an address alone describes it, otherwise a copy of which that is true."""
    if tensor.is_contiguous() and tensor.storage_offset() * tensor.itemsize % ADDRESS == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def resolved(port: Port, sizes: Sizes) -> tuple[int, ...]:
    return tuple(sizes[size] if isinstance(size, str) else size for size in port.shape)


def name_of(dtype: torch.dtype) -> str:
    """float32 of torch.float32."""
    return str(dtype).removeprefix("torch.")
