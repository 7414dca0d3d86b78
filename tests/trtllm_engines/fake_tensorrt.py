"""A stand-in for `tensorrt` that records what is built and rejects a profile that TensorRT would."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

Dimension = int | str  # a fixed size, or the name of a dynamic one


class NetworkDefinitionCreationFlag(enum.IntEnum):
    EXPLICIT_BATCH = 0
    STRONGLY_TYPED = 1


class MemoryPoolType(enum.Enum):
    WORKSPACE = 0


class Logger:
    INFO, WARNING = 3, 2

    def __init__(self, min_severity: int = WARNING) -> None:
        self.min_severity = min_severity


@dataclass
class ITensor:
    name: str
    dimensions: tuple[Dimension, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(-1 if isinstance(size, str) else size for size in self.dimensions)

    def get_dimension_name(self, index: int) -> str:
        size = self.dimensions[index]
        return size if isinstance(size, str) else ""


@dataclass
class INetworkDefinition:
    flags: int
    inputs: list[ITensor] = field(default_factory=list)

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_input(self, index: int) -> ITensor:
        return self.inputs[index]


class IOptimizationProfile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}

    def set_shape(self, input: str, min: tuple[int, ...], opt: tuple[int, ...], max: tuple[int, ...]) -> None:
        self.shapes[input] = (min, opt, max)


class IBuilderConfig:
    def __init__(self) -> None:
        self.pools: dict[MemoryPoolType, int] = {}
        self.profiles: list[IOptimizationProfile] = []

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        self.pools[pool] = pool_size

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1


@dataclass
class Graph:
    """What a file is said to hold."""

    inputs: list[ITensor]
    error: str = ""
    builds: bool = True


class FakeTensorRt(ModuleType):
    """`library` of trtllm_engines.build_drafter, with the graphs that it can read."""

    Logger = Logger
    MemoryPoolType = MemoryPoolType
    NetworkDefinitionCreationFlag = NetworkDefinitionCreationFlag

    def __init__(self, graphs: dict[str, Graph]) -> None:
        super().__init__("tensorrt")
        self.graphs = graphs
        self.built: list[tuple[INetworkDefinition, IBuilderConfig]] = []

    def Builder(self, logger: Logger) -> Any:  # noqa: N802
        return _Builder(self)

    def OnnxParser(self, network: INetworkDefinition, logger: Logger) -> Any:  # noqa: N802
        return _Parser(self, network)


class _Builder:
    def __init__(self, library: FakeTensorRt) -> None:
        self.library = library

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        return INetworkDefinition(flags)

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> bytes | None:
        for tensor, profile in product(network.inputs, config.profiles):
            low, usual, high = profile.shapes[tensor.name]
            for size, a, b, c in zip(tensor.shape, low, usual, high, strict=True):
                assert a <= b <= c, f"{tensor.name}: {a}, {b}, {c}"
                assert size < 0 or (a, b, c) == (size, size, size), f"{tensor.name}: {size} became {a} to {c}"
        self.library.built.append((network, config))
        name = next(name for name, graph in self.library.graphs.items() if graph.inputs is network.inputs)
        return f"engine of {name}".encode() if self.library.graphs[name].builds else None


class _Parser:
    def __init__(self, library: FakeTensorRt, network: INetworkDefinition) -> None:
        self.library, self.network = library, network
        self.errors: list[str] = []

    @property
    def num_errors(self) -> int:
        return len(self.errors)

    def get_error(self, index: int) -> Any:
        error = self.errors[index]
        return type("IParserError", (), {"desc": lambda self: error})()

    def parse_from_file(self, model: str) -> bool:
        graph = self.library.graphs[Path(model).stem]
        self.network.inputs = graph.inputs
        if graph.error:
            self.errors.append(graph.error)
        return not graph.error
