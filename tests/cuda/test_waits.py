"""The host does not wait for the device once a sequence."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from build_scripts.drafter_weights import Drafter
from python_backend.assembly.hosted import FeatureStore, HostedDrafter, HostingTarget
from python_backend.checks import feature_columns
from python_backend.drafters.engine import NetworkDrafter
from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import Context, DrafterStep, Part
from python_backend.sampling.params import SamplingParams, columns
from tests.cuda.conftest import MAX_LENGTH, SLOTS
from tests.cuda.test_engine import Note
from tests.support.checkpoints import make_step

FEW, MANY = 4, 16
PROMPT = 20


def waits(device: str, call: Callable[[], object]) -> int:
    """How often the host waits for the device in a call: transfers that block, values that are looked at."""
    if torch.device(device).type != "cuda":
        call()
        return 0
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)


def test_a_wait_is_seen(device: str) -> None:
    """Guards the tests below against a count that counts nothing."""
    one = torch.ones(1, device=device)
    least = 3 if one.is_cuda else 0
    assert waits(device, lambda: [one.item() for _ in range(3)]) >= least


def decode_step(count: int, row: int, drafts: int = 0, **sampling: float):
    """Sequences of different lengths, after a prompt each."""
    parts = [Part(s, PROMPT - s % 3 + row, [7] * (1 + drafts), drafts=drafts) for s in range(count)]
    params = [SamplingParams(seed=s, **sampling) for s in range(count)]
    return make_step(*parts, **columns(params, [PROMPT] * count))


def prompts() -> list[Part]:
    return [Part(s, 0, list(range(100, 100 + PROMPT + 8))) for s in range(SLOTS)]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"drafts": 7},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "drafts": 3},
        {"repetition_penalty": 1.2},
    ],
    ids=["greedy", "greedy drafts", "sampled", "nucleus drafts", "penalty"],
)
def test_a_step_waits_as_often_for_many_sequences_as_for_few(
    engine: TorchEngine, device: str, note: Note, asked: dict[str, float]
) -> None:
    engine.step_on_device(make_step(*prompts()))
    few, many = decode_step(FEW, 0, **asked), decode_step(MANY, 0, **asked)
    engine.step_on_device(many)  # what is made on first use
    counted = {len(step.slot): waits(device, lambda s=step: engine.step_on_device(s)) for step in (few, many)}
    note(f"waits in a step by sequences, {asked or 'greedy'}", counted)
    assert counted[FEW] == counted[MANY]
    assert counted[MANY] < MANY


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["drafter_mtp", "drafter_dfly"])
def test_a_hosted_draft_round_waits_as_often_for_many_sequences_as_for_few(
    engine: TorchEngine,
    device: str,
    embedded: Path,
    drafter_weights: dict[str, Drafter],
    note: Note,
    name: str,
    temperature: float,
) -> None:
    network = NetworkDrafter(name, drafter_weights[name].folder, embedded, SLOTS, MAX_LENGTH, device)
    store = FeatureStore(SLOTS)
    hosting = HostingTarget(engine, store)
    drafter = HostedDrafter(network, store, feature_columns(engine.describe(), network.describe()))
    hosting.step(make_step(*prompts()))

    def draft(count: int, past: int, rows: int) -> DrafterStep:
        contexts = [Context(slot, past, [5] * (rows - slot % 2)) for slot in range(count)]
        hot = np.full(count, temperature, dtype=np.float32)
        return DrafterStep.of(contexts, network.config.depth, temperature=hot, seed=np.arange(count, dtype=np.uint64))

    drafter.step(draft(SLOTS, 0, 10))
    counted = {n: waits(device, lambda n=n: drafter.step(draft(n, 8, 3))) for n in (FEW, MANY)}
    note(f"waits in a draft round by sequences, {name}, temperature {temperature:g}", counted)
    assert counted[FEW] == counted[MANY]
