"""Speculation on the device emits the tokens of plain decoding on it: the coordinator's loop around the engine, with
prompt lookup and drafter networks in the target's process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from build_scripts.drafter_weights import Drafter
from python_backend.assembly.hosted import FeatureStore, HostedDrafter, HostingTarget
from python_backend.checkpoints.tokenizer import load_tokenizer
from python_backend.checks import feature_columns
from python_backend.coordinator.service import Service
from python_backend.drafters.engine import NetworkDrafter
from python_backend.drafters.prompt_lookup import PromptLookup
from python_backend.engine import DrafterEngine
from python_backend.engines.torch_engine import TorchEngine
from python_backend.protocol import ProtocolError
from python_backend.settings import WORKLOADS
from tests.cuda.conftest import MAX_LENGTH, SLOTS
from tests.cuda.test_engine import Note, engine_logits, reference_logits
from tests.python_backend.engines.test_transformers_agreement import PROMPTS
from tests.server.near_ties import gap
from tests.support.host import Answer, ask, settings_for, start, wait_until

TOKENS, REQUESTS, DEPTH = 36, 12, 7
FLOAT32_TIE = 2e-3  # gap of the two best scores below which float32 rounding may decide
POLICIES = ("fixed", "dcut", "off")
EVERY_BUDGET, SMALL, LARGE = (0.0, 0.25, 0.5, 0.75, 1.0), (0.25,), (1.0,)


class Way(NamedTuple):
    """How a round is decoded."""

    policy: str
    depth: int = DEPTH
    rho: tuple[float, ...] = EVERY_BUDGET


WAYS = (
    Way("off"),
    Way("fixed"),
    Way("fixed", 2),
    Way("dcut"),
    Way("dcut", 3),
    Way("dcut", rho=SMALL),
    Way("dcut", rho=LARGE),
)
FEW_WAYS = (Way("off"), Way("fixed"), Way("dcut", rho=LARGE))


@dataclass(frozen=True, eq=False)
class Host:
    """A target with drafters in its process."""

    engine: TorchEngine
    store: FeatureStore
    networks: list[NetworkDrafter]
    drafters: dict[str, DrafterEngine]
    cache: Path
    memory: Callable[[], int]  # bytes that are in use on the device

    @contextmanager
    def serve(self, rho: tuple[float, ...]) -> Iterator[Service]:
        limits = {"max_sequences": SLOTS, "max_length": MAX_LENGTH, "depth": DEPTH, "prefill_rows": 64}
        settings = settings_for(list(self.drafters), coordinator=limits, budget={"rho": rho}, cache_dir=self.cache)
        service = start(settings, HostingTarget(self.engine, self.store), self.drafters)
        try:
            yield service
        finally:
            service.shutdown()


@pytest.fixture(scope="module")
def host_of(
    device: str, embedded: Path, drafter_weights: dict[str, Drafter], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[TorchEngine], Host]:
    """Around an engine, the drafters that there are."""
    networks = {
        name: NetworkDrafter(name, drafter.folder, embedded, SLOTS, MAX_LENGTH, device)
        for name, drafter in drafter_weights.items()
    }
    cache = tmp_path_factory.mktemp("cache")

    def build(engine: TorchEngine) -> Host:
        store = FeatureStore(SLOTS)
        drafters: dict[str, DrafterEngine] = {
            name: HostedDrafter(network, store, feature_columns(engine.describe(), network.describe()))
            for name, network in networks.items()
        }
        drafters["drafter_prompt_lookup"] = PromptLookup("drafter_prompt_lookup", SLOTS, MAX_LENGTH, DEPTH, 1, 4)
        on_gpu = torch.device(device).type == "cuda"
        memory = (lambda: torch.cuda.memory_allocated(device)) if on_gpu else (lambda: 0)
        return Host(engine, store, list(networks.values()), drafters, cache, memory)

    return build


def requests(embedded: Path, temperature: float, processors: bool) -> list[dict[str, Any]]:
    """One of each workload in turn; prompts that repeat an answer, so that prompt lookup is often right."""
    tokenizer = load_tokenizer(embedded)
    texts = ["\n".join(f"{prompt}\nAnswer: I do not know." for prompt in PROMPTS[i : i + 3]) for i in range(REQUESTS)]
    return [
        {
            "input_ids": list(tokenizer(f"{texts[i]}\n{PROMPTS[i + 3]}\nAnswer:")["input_ids"]),
            "max_tokens": TOKENS,
            "end_id": -1,
            "temperature": temperature,
            "seed": 1000 + i,
            "top_p": 0.9 if processors and temperature and i % 4 == 0 else 0.0,
            "top_k": 40 if processors and temperature and i % 4 == 1 else 0,
            "repetition_penalty": 1.2 if processors and i % 5 == 4 else 1.0,
            "workload": WORKLOADS[i % 3],
        }
        for i in range(REQUESTS)
    ]


class Difference(NamedTuple):
    way: Way
    request: int
    position: int
    gap: float  # of the scores of the two tokens, by transformers in float32


@dataclass
class Outcome:
    """What all ways gave, beside plain decoding of each request alone."""

    compared: int = 0
    sequences: int = 0
    kept: int = 0
    accepted: int = 0
    differences: tuple[Difference, ...] = ()
    texts: tuple[list[int], ...] = ()  # prompts with what plain decoding made of them

    @property
    def identical(self) -> float:
        return 1 - len(self.differences) / self.sequences

    def __str__(self) -> str:
        return (
            f"{self.compared} tokens in {self.sequences} sequences compared, {self.identical:.1%} of the sequences "
            f"identical, {self.kept} drafts verified, {self.accepted} accepted; differences {list(self.differences)}"
        )


def decode_all(host: Host, asked: list[dict[str, Any]], ways: tuple[Way, ...], reference: Any) -> Outcome:
    """The first difference of a sequence counts: what follows it has another prefix."""
    outcome = Outcome()
    plain: list[list[int]] = []
    for rho in dict.fromkeys(way.rho for way in ways):
        with host.serve(rho) as service:
            if not plain:
                service.set_policy("off")
                plain = [ids_of(ask(service, **request)) for request in asked]
                outcome.texts = tuple(r["input_ids"] + ids for r, ids in zip(asked, plain, strict=True))
            for way in (w for w in ways if w.rho == rho):
                service.set_policy(way.policy)
                answers = [ask(service, **request, num_draft_tokens=way.depth) for request in asked]
                for i, answer in enumerate(answers):
                    have, want, request = ids_of(answer), plain[i], asked[i]
                    assert len(have) == len(want) == TOKENS
                    summary = json.loads(answer.chunks[-1]["speculation"][0])
                    outcome.compared += TOKENS
                    outcome.sequences += 1
                    outcome.kept += summary["num_kept_tokens"]
                    outcome.accepted += summary["num_accepted_tokens"]
                    at = next((t for t, (a, b) in enumerate(zip(want, have, strict=True)) if a != b), None)
                    if at is not None:
                        apart = gap(reference, request["input_ids"], request, want[:at], want[at], have[at])
                        outcome.differences += (Difference(way, i, at, apart),)
    return outcome


def ids_of(answer: Answer) -> list[int]:
    assert answer.wait(240).error is None, answer.error
    return answer.ids


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_float32_gives_the_tokens_of_plain_decoding(
    engine: TorchEngine, host_of: Any, embedded: Path, reference: Any, note: Note, temperature: float
) -> None:
    host = host_of(engine)
    outcome = decode_all(host, requests(embedded, temperature, processors=True), WAYS, reference)
    note(f"float32, temperature {temperature:g}", outcome)
    assert all(d.gap < FLOAT32_TIE for d in outcome.differences)
    assert len(outcome.differences) <= outcome.compared // 500
    assert outcome.kept > outcome.accepted > 0


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_bfloat16_differs_only_at_near_ties(
    half_engine: TorchEngine, host_of: Any, embedded: Path, reference: Any, note: Note, temperature: float
) -> None:
    """Two tokens that either pass may choose are no further apart than twice what bfloat16 is off."""
    asked = requests(embedded, temperature, processors=False)
    outcome = decode_all(host_of(half_engine), asked, FEW_WAYS, reference)
    off = max(
        float(np.abs(engine_logits(half_engine, ids) - reference_logits(reference, ids)).max()) for ids in outcome.texts
    )
    note(f"bfloat16, temperature {temperature:g}", f"{outcome}; logits are off by up to {off:.3f}")
    assert all(d.gap < 2 * off for d in outcome.differences)
    assert outcome.accepted > 0


def test_slots_features_and_memory_return_to_the_start(
    engine: TorchEngine, host_of: Any, embedded: Path, note: Note
) -> None:
    host = host_of(engine)
    asked = requests(embedded, 0.7, processors=True)
    with host.serve(LARGE) as service:

        def run(policy: str) -> None:
            service.set_policy(policy)
            answers = [ask(service, **with_length(request, i)) for i, request in enumerate(asked * 2)]
            assert all(ids_of(answer) for answer in answers)

        for policy in POLICIES:  # what is made on first use, such as the libraries' work space
            run(policy)
        before = host.memory()
        for policy in POLICIES:
            run(policy)
        wait_until(lambda: host.memory() <= before)
        assert service._scheduler.free_slots == SLOTS
    note("bytes on the device before and after", (before, host.memory()))
    assert not host.engine.slots.stored.any()
    assert not any(network.context.stored.any() for network in host.networks)
    for slot in range(SLOTS):
        with pytest.raises(ProtocolError, match="holds those of 0 rows"):
            host.store.take(slot, 0, 1)


def with_length(request: dict[str, Any], number: int) -> dict[str, Any]:
    """So that requests end at different steps."""
    return request | {"max_tokens": 4 + 3 * (number % 8)}
