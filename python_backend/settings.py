"""One strict settings tree: `angelspec.yaml` beside the model repository, then ANGELSPEC_* variables over it.

`ANGELSPEC_SETTINGS` names another file; `ANGELSPEC_BUDGET__POLICY=fixed` overrides one value. An unknown key in
the file, or below a section in a variable, is an error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from yaml import YAMLError

from python_backend.settings_errors import SettingsError, explain

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_FILE = ROOT / "angelspec.yaml"

EngineName = Literal["torch", "openvino", "tensorrt_llm", "stock"]
DrafterEngineName = Literal["auto", "openvino", "torch", "tensorrt"]
Quantization = Literal["auto", "exact", "int8-dynamic"]
ProcessName = Literal["own", "coordinator", "target"]
PolicyName = Literal["off", "fixed", "dcut"]
Workload = Literal["chat", "code", "math"]
NETWORK = "network"  # kind of a trained drafter
HOSTS: tuple[EngineName, ...] = ("torch", "tensorrt_llm")  # engines that can run drafters beside them
WORKLOADS: tuple[Workload, ...] = ("chat", "code", "math")
CompatibleModel = Literal["ensemble", "tensorrt_llm_bls"]
COMPATIBLE_MODELS: tuple[CompatibleModel, ...] = ("ensemble", "tensorrt_llm_bls")


RENAMED = {  # old name of a setting -> its name now
    "target.weights": "target.quantization",
    "target.graphs": "target.compiled_copies",
    "drafters.NAME.weights": "drafters.NAME.folder",
    "also": "shared_drafters",
    "budget.longest_pause": "budget.max_skipped_steps",
}
REPLACED = {  # old name -> what says the same now
    "target.hosts_drafters": "drafters.NAME.process: target, at each network",
    "drafters.NAME.in_process": "drafters.NAME.process: coordinator or own",
}


def refuse_old_names(values: Any, section: str) -> Any:
    """values: what is given for a section. Raises ValueError that says what the setting is called now."""
    for old, new in RENAMED.items():
        head, _, key = old.rpartition(".")
        if head == section and isinstance(values, dict) and key in values:
            raise ValueError(f"{old} is called {new} now: set that to {values[key]} instead")
    for old, now in REPLACED.items():
        head, _, key = old.rpartition(".")
        if head == section and isinstance(values, dict) and key in values:
            raise ValueError(f"{old} is no setting any more: instead of {values[key]} set {now}")
    return values


class Section(BaseModel):
    """Base of the sections; an unknown key, or an old name, is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        return refuse_old_names(values, cls.name)


class TargetSettings(Section):
    """The model that is served, and what runs it."""

    name = "target"

    engine: EngineName = Field(
        "torch",
        description="what runs the target; openvino: CPU only, tensorrt_llm: GPU only, stock: another Triton model",
    )
    checkpoint: str = Field("smollm2-135m", description="a model fetched under the cache, or a Hugging Face folder")
    engine_folder: Path | None = Field(None, description="built engine of the checkpoint: tensorrt_llm only")
    stock_model: str = Field("tensorrt_llm", description="NVIDIA's model that verifies: stock only")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of weights, arithmetic and KV")
    quantization: Quantization = Field(
        "auto",
        description="exact: as stored, in float32; int8-dynamic: 8-bit products, a slightly different model, openvino "
        "with invariant only; auto: int8-dynamic with invariant on openvino where the CPU has AVX512-VNNI or AMX-INT8, "
        "else exact",
    )
    invariant: bool = Field(
        False,
        description="logits do not depend on the batch, to the bit: openvino only; exactness.md says when it matters",
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:1")
    threads: int = Field(0, ge=0, description="0 = one per core")
    compiled_copies: int = Field(
        4, ge=1, description="compiled copies of the network, each left at the shapes of its last pass: openvino only"
    )
    prefix_cache: int = Field(
        8192, ge=0, description="KV rows kept for prompts that begin alike, 0 = none; torch keeps none"
    )
    feature_layers: tuple[int, ...] = Field((), description="captured hidden layers; by default what the drafters read")

    @model_validator(mode="after")
    def _engine_has(self) -> Self:
        if self.engine == "openvino" and (self.dtype, self.device) != ("float32", "cpu"):
            raise ValueError(
                f"target.engine openvino computes in float32 on the cpu, not in {self.dtype} on {self.device}: "
                "use target.engine torch"
            )
        if self.engine != "openvino" and (self.quantization == "int8-dynamic" or self.invariant):
            raise ValueError(
                f"target.quantization {self.quantization} with target.invariant {self.invariant} needs target.engine "
                f"openvino, it is {self.engine}: set target.quantization auto and target.invariant false"
            )
        if self.quantization == "int8-dynamic" and not self.invariant:
            raise ValueError(
                "target.quantization int8-dynamic with target.invariant false: answers would depend on the other "
                "requests of the batch; set target.invariant true, or target.quantization auto"
            )
        if (self.engine == "tensorrt_llm") != (self.engine_folder is not None):
            raise ValueError(
                f"target.engine is {self.engine} and target.engine_folder is {self.engine_folder}: tensorrt_llm needs "
                "the folder of a built engine, and nothing else has one"
            )
        return self


class DrafterSettings(Section):
    """One drafter."""

    name = "drafters.NAME"

    kind: str = Field("prompt_lookup", description="prompt_lookup, or network: trained weights")
    folder: Path | None = Field(None, description="network: its folder; by default model_repository/NAME/1")
    device: str = Field("cpu", description="network: cpu, cuda, cuda:1")
    engine: DrafterEngineName = Field(
        "auto",
        description="network: tensorrt runs built engines, in the target's process; auto where its folder has them, "
        "else openvino on a CPU and torch elsewhere",
    )
    eight_bit: bool = Field(True, description="openvino: weights rounded to 8 bits; only drafts can change")
    least_confidence: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="of a network, on a CPU: a chain less likely than this to be accepted so far goes no further",
    )
    max_ngram: int = Field(4, ge=1, le=16, description="longest n-gram that prompt lookup searches")
    min_ngram: int = Field(1, ge=1, description="shortest one")
    process: ProcessName = Field(
        "own",
        description="where it runs: own = a Triton model of its own; coordinator = no call at all, for prompt_lookup; "
        "target = beside the target, so that a network's features stay on its device",
    )

    @model_validator(mode="after")
    def _light_enough(self) -> Self:
        if self.engine == "tensorrt" and self.kind != "network":
            raise ValueError(f"engine tensorrt is for a network, not for {self.kind}")
        if self.engine == "openvino" and self.device != "cpu":
            raise ValueError(f"engine openvino runs on the cpu, not on {self.device}: use engine torch")
        if self.process == "coordinator" and self.kind != "prompt_lookup":
            raise ValueError(
                f"process coordinator is for prompt_lookup, not for a {self.kind}: it would hold up the loop"
            )
        if self.process == "target" and self.kind != NETWORK:
            raise ValueError(f"process target is for a network, not for {self.kind}: it has no features to keep there")
        if self.engine == "tensorrt" and self.process != "target":
            raise ValueError(
                f"engine tensorrt needs process target, not {self.process}: built engines find features on its device"
            )
        return self


class CoordinatorSettings(Section):
    """Requests, slots and steps."""

    name = "coordinator"

    max_sequences: int = Field(32, ge=1, description="KV slots: sequences decoded at once")
    max_length: int = Field(2048, ge=8, description="tokens of a sequence, prompt and output")
    max_queue: int = Field(256, ge=0, description="waiting requests; one more is refused with UNAVAILABLE")
    depth: int = Field(7, ge=0, le=64, description="drafts per sequence and step, D")
    prefill_rows: int = Field(256, ge=1, description="prompt rows of one step, beside the decoding rows")
    default_max_tokens: int = Field(256, ge=1, description="output tokens where the request names none")
    router: Path = Field(
        ROOT / "python_backend" / "coordinator" / "router.safetensors",
        description="classifier of prompts; where it does not fit the target, key words decide",
    )
    deadline_s: float = Field(600.0, gt=0, description="longest life of a request without a timeout of its own")
    allow_control_tokens: bool = Field(
        False, description="control tokens written in the text of messages count as such; text_input always may"
    )
    drain_s: float = Field(20.0, ge=0, description="how long a shutdown waits for running requests")
    step_log: Path | None = Field(None, description="file that gets one JSON line a step")
    compatible_models: tuple[CompatibleModel, ...] = Field(
        COMPATIBLE_MODELS, description="further names of the coordinator, those of TensorRT-LLM's backend"
    )
    allow_control: bool = Field(False, description="accept requests that change the budget policy (benchmarks)")


class BudgetSettings(Section):
    """How many drafts are made and verified."""

    name = "budget"

    policy: PolicyName = Field("dcut", description="how many drafts are verified")
    rho: tuple[float, ...] = Field(
        (0.25, 0.5, 0.75, 1.0), description="fractions of B (D + 1) rows that dcut weighs; 0 = plain decoding"
    )
    max_skipped_steps: int = Field(
        1, ge=1, description="steps for which a drafter may stay unasked for a request where it does not pay; 1 = never"
    )
    online_costs: bool = Field(True, description="the cost table is corrected by the steps that are measured")
    profile_context: int = Field(128, ge=1, description="context length at which the cost table is measured")
    profile_repeats: int = Field(3, ge=1, description="timed calls a point of the cost table; the median counts")
    profile_reuse: bool = Field(True, description="reuse a saved table with the same fingerprint")

    @field_validator("rho")
    @classmethod
    def _rho_in_range(cls, rho: tuple[float, ...]) -> tuple[float, ...]:
        if not rho or any(not 0 <= r <= 1 for r in rho):
            raise ValueError(f"rho is {rho}: there must be one, and every fraction lies between 0 and 1")
        return tuple(sorted(rho))


class Settings(BaseSettings):
    """All of them, from the YAML file and then from ANGELSPEC_… variables."""

    model_config = SettingsConfigDict(
        env_prefix="ANGELSPEC_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        yaml_file_encoding="utf-8",
    )

    target: TargetSettings = TargetSettings()
    drafters: dict[str, DrafterSettings] = Field(
        {"drafter_prompt_lookup": DrafterSettings()}, description="Triton model name -> drafter"
    )
    routes: dict[Workload, str] = Field(
        dict.fromkeys(WORKLOADS, "drafter_prompt_lookup"), description="workload -> drafter model"
    )
    thinking_routes: dict[Workload, str] = Field(
        {}, description="the same for requests with `thinking`; where it names none, routes does"
    )
    shared_drafters: tuple[str, ...] = Field(
        (), description="drafters asked for every request beside its own; the drafts of which more are expected win"
    )
    coordinator: CoordinatorSettings = CoordinatorSettings()
    budget: BudgetSettings = BudgetSettings()
    cache_dir: Path = Field(ROOT / ".cache", description="fetched models, cost tables, server workspace")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (part of an interface)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (part of an interface)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = settings_file()
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, yaml_file=file)

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        return refuse_old_names(values, "")

    @model_validator(mode="after")
    def _target_has_room_for_drafters(self) -> Self:
        inside = self.drafters_in("target")
        if inside and self.target.engine not in HOSTS:
            raise ValueError(
                f"drafters.{inside[0]}.process is target, and target.engine is {self.target.engine}: only "
                f"{' and '.join(HOSTS)} run drafters beside them"
            )
        return self

    def drafters_in(self, process: ProcessName) -> list[str]:
        """The drafters that run there."""
        return [name for name, drafter in self.drafters.items() if drafter.process == process]

    def drafter_of(self, workload: Workload, thinking: bool) -> str:
        """The drafter model of a request."""
        return self.thinking_routes.get(workload, self.routes[workload]) if thinking else self.routes[workload]


def settings_file() -> Path:
    """The YAML in force. Raises FileNotFoundError where ANGELSPEC_SETTINGS names a file that is not there."""
    named = os.environ.get("ANGELSPEC_SETTINGS")
    if named and not Path(named).is_file():
        raise FileNotFoundError(f"ANGELSPEC_SETTINGS names '{named}', which is not a file")
    return Path(named) if named else DEFAULT_FILE


def load() -> Settings:
    """The settings in force. Raises SettingsError with the place, the key, the value and what is allowed."""
    file = settings_file()
    try:
        return Settings()
    except ValidationError as error:
        raise explain(error, Settings, file, "ANGELSPEC_") from None
    except YAMLError as error:
        raise SettingsError(f"{file} is no YAML: {' '.join(str(error).split())}") from None
