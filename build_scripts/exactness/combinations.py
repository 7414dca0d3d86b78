"""Every combination of settings that could change a token, and what each of them comes to on this CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError

from python_backend.engines.quantization import in_effect
from python_backend.settings import PolicyName, Quantization, TargetSettings

ENGINES = ("torch", "openvino")
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
LOOKUP, MTP, DFLY = "drafter_prompt_lookup", "drafter_mtp", "drafter_dfly"
NONE, ALL = "none", "mtp + lookup"
DRAFTERS: dict[str, tuple[str, ...]] = {  # a request's own drafter, then those beside it
    NONE: (),
    "prompt_lookup": (LOOKUP,),
    "mtp": (MTP,),
    "dfly": (DFLY,),
    ALL: (MTP, LOOKUP),
}


class Arithmetic(NamedTuple):
    """What a target computes with: answers may differ between two of them, never within one."""

    engine: str
    quantization: str  # in effect: never auto
    invariant: bool

    def __str__(self) -> str:
        return f"{self.engine} {self.quantization}" + (", invariant" if self.invariant else "")

    @property
    def to_the_bit(self) -> bool:
        """Whether logits are promised to be the same bits in any batch, so that near-ties cannot flip."""
        return self.invariant


class Combination(NamedTuple):
    """As a user sets it."""

    engine: str
    quantization: str
    invariant: bool
    policy: PolicyName
    drafters: str  # of DRAFTERS

    def target(self) -> dict[str, Any]:
        return {"engine": self.engine, "quantization": self.quantization, "invariant": self.invariant}


class Run(NamedTuple):
    """What is generated once for all combinations that come to the same."""

    arithmetic: Arithmetic
    policy: PolicyName
    drafters: str

    def __str__(self) -> str:
        return f"{self.arithmetic} / {self.policy} / {self.drafters}"

    @property
    def drafts(self) -> bool:
        return self.policy != "off" and self.drafters != NONE


def combinations() -> Iterator[Combination]:
    """The whole cross product, whether it is allowed or not."""
    yield from map(Combination._make, product(ENGINES, get_args(Quantization), (False, True), POLICIES, DRAFTERS))


def refusal(combination: Combination) -> str:
    """Why the server would not start with it; empty where it would."""
    try:
        TargetSettings.model_validate(combination.target())
    except ValidationError as error:
        return "; ".join(str(e["msg"]).removeprefix("Value error, ") for e in error.errors())
    return ""


def run_of(combination: Combination) -> Run:
    """What an allowed combination comes to on this CPU."""
    target = in_effect(TargetSettings.model_validate(combination.target()))
    arithmetic = Arithmetic(target.engine, target.quantization, target.invariant)
    return Run(arithmetic, combination.policy, combination.drafters)


def computed_as(run: Run) -> Run:
    """The run that stands for it: where nothing is drafted, policy and drafters have no say."""
    return run if run.drafts else run._replace(policy="off", drafters=ALL)


def allowed() -> dict[Run, list[Combination]]:
    """The combinations of each run that is to be computed."""
    found: dict[Run, list[Combination]] = {}
    for combination in combinations():
        if not refusal(combination):
            found.setdefault(computed_as(run_of(combination)), []).append(combination)
    return found


def refused() -> dict[str, list[Combination]]:
    """The combinations that are refused, by the message."""
    found: dict[str, list[Combination]] = {}
    for combination in combinations():
        if message := refusal(combination):
            found.setdefault(message, []).append(combination)
    return found
