"""On a GPU every operation is a launch: a step takes as many for many sequences as for few."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from python_backend.assembly.hosted import FeatureStore, HostedDrafter, HostingTarget
from python_backend.drafters.engine import NetworkDrafter
from python_backend.protocol import Context, DrafterStep, Part, TargetStep
from python_backend.sampling import verify, verify_torch
from python_backend.sampling.history import TokenHistory
from python_backend.sampling.params import SamplingParams, columns
from tests.support.checkpoints import VOCABULARY, load_engine, make_step
from tests.support.drafters import save_drafter

FEW, MANY, LENGTH = 4, 12, 96


class Counter(TorchDispatchMode):
    """Counts operations that compute; views cost a GPU nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operations(call: Callable[[], object]) -> int:
    with Counter() as counter:
        call()
    return counter.count


def uneven(count: int, drafts: int = 2, **sampling: float) -> TargetStep:
    """A verify step of sequences whose contexts differ in length."""
    parts = [Part(s, 20 - s % 3, [7] * (1 + drafts - s % 2), drafts=drafts - s % 2) for s in range(count)]
    params = [SamplingParams(seed=s, **sampling) for s in range(count)]  # type: ignore[arg-type]
    return make_step(*parts, **columns(params, [5] * count))


def test_a_pass_of_the_target(tiny_llama: Path) -> None:
    engine = load_engine(tiny_llama, MANY, LENGTH, feature_layers=(0, 3))
    engine.few_runs = True
    engine.step(make_step(*(Part(s, 0, list(range(30))) for s in range(MANY))))
    few, many = (operations(lambda n=n: engine.forward(uneven(n))) for n in (FEW, MANY))  # type: ignore[misc]
    assert few == many > 3 * 10


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.02},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5},
        {"return_log_probs": True},
    ],
    ids=["greedy", "sampled", "truncated", "penalties", "log probabilities"],
)
def test_acceptance_on_the_device(sampling: dict[str, float]) -> None:
    history, rng = TokenHistory(MANY, LENGTH), np.random.default_rng(0)

    def accept(count: int) -> int:
        step = uneven(count, **sampling)
        history.write(step)
        logits = rng.normal(size=(len(verify.logit_rows(step)), VOCABULARY)).astype(np.float32)
        return operations(lambda: verify_torch.accept(step, torch.from_numpy(logits), history))

    assert accept(FEW) == accept(MANY)


@pytest.mark.parametrize("kind", ["mtp", "dfly"])
def test_a_round_with_a_drafter_in_the_targets_process(kind: str, tiny_llama: Path, tmp_path: Path) -> None:
    layers = (3,) if kind == "mtp" else (0, 2)
    folder = save_drafter(kind, tmp_path, tiny_llama, layers)
    target, store = load_engine(tiny_llama, MANY, LENGTH, feature_layers=layers), FeatureStore(MANY)
    network = NetworkDrafter("drafter", folder, tiny_llama, MANY, LENGTH, engine="torch")
    drafter = HostedDrafter(network, store, np.arange(len(layers) * 48))
    target.few_runs = True
    hosting = HostingTarget(target, store)
    for past in (0, 10):  # two pieces of features a slot
        hosting.step(make_step(*(Part(s, past, list(range(10))) for s in range(MANY))))

    def draft(count: int, past: int, rows: list[int]) -> DrafterStep:
        return DrafterStep.of([Context(slot, past, [7] * rows[slot]) for slot in range(count)], 3)

    drafter.step(draft(MANY, 0, [8] * MANY))
    counts = [operations(lambda n=n: drafter.step(draft(n, 8, [4, 3] * MANY))) for n in (FEW, MANY)]  # type: ignore[misc]
    assert counts[0] == counts[1] > 20
    counts = [operations(lambda n=n: hosting.step(uneven(n))) for n in (FEW, MANY)]  # type: ignore[misc]
    assert counts[0] == counts[1] > 20
