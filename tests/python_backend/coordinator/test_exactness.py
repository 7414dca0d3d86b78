"""The output is a function of prompt, parameters and seed: nothing that speculation does can change it."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.host import ask, settings_for, start
from tests.support.toy import ToyDrafter, ToyTarget, toy_decode

POLICIES = ("off", "fixed", "dcut")


CASES = {  # features, prefix blocks, further drafters, longest pause
    "no features": (0, 0, (), 1),
    "features": (3, 0, (), 1),
    "shared prefixes": (3, 8, (), 1),
    "two each": (3, 0, ("c",), 1),
    "pauses": (3, 8, ("c",), 16),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def service(request, tmp_path_factory):
    size, prefix_block, also, max_skipped_steps = request.param
    drafters = {
        "drafter_a": ToyDrafter(feature_size=size, right=0.8),
        "drafter_b": ToyDrafter(feature_size=size, right=0.4),
    }
    cache = tmp_path_factory.mktemp("cache")
    budget = {"max_skipped_steps": max_skipped_steps, "rho": (0, 0.5, 1)}
    limits = settings_for(list(drafters), shared_drafters=also, cache_dir=cache, budget=budget)
    drafters |= {name: ToyDrafter(right=0.5) for name in also}
    running = start(limits, ToyTarget(feature_size=size, prefix_block=prefix_block), drafters)
    yield running
    running.shutdown()


requests = st.lists(
    st.fixed_dictionaries(
        {
            "input_ids": st.lists(st.integers(0, 94), min_size=1, max_size=40),
            "max_tokens": st.integers(1, 30),
            "num_draft_tokens": st.sampled_from([0, 1, 2, 4]),
            "temperature": st.sampled_from([0.0, 0.0, 0.8, 1.0]),
            "top_p": st.sampled_from([0.0, 0.9]),
            "top_k": st.sampled_from([0, 5]),
            "repetition_penalty": st.sampled_from([1.0, 1.3]),
            "presence_penalty": st.sampled_from([0.0, 0.5]),
            "min_tokens": st.sampled_from([0, 10]),
            "seed": st.integers(0, 2**64 - 1),
            "stream": st.booleans(),
            "workload": st.sampled_from(["chat", "code"]),
        }
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=requests, policy=st.sampled_from(POLICIES))
def test_speculation_batch_mates_and_budget_do_not_change_the_output(service, requests, policy):
    service.set_policy("off")
    alone = [ask(service, **r).wait() for r in requests]
    service.set_policy(policy)
    together = [ask(service, **r) for r in requests]
    for plain, mixed in zip(alone, together, strict=True):
        mixed.wait()
        assert mixed.error is None
        assert mixed.ids == plain.ids
        assert mixed.text == plain.text
        assert mixed.reason == plain.reason
        assert mixed.finals == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_output_is_the_models_own(service, policy):
    service.set_policy(policy)
    prompts = [np.random.default_rng(i).integers(0, 94, size=5 + i).tolist() for i in range(12)]
    answers = [ask(service, input_ids=p, max_tokens=40, end_id=-1) for p in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.wait().ids == toy_decode(prompt, 40)


def test_a_fixed_seed_repeats_and_no_seed_varies(service):
    service.set_policy("dcut")

    def draw(**seed):
        return ask(service, input_ids=[1, 2, 3], max_tokens=20, temperature=1.0, **seed).wait().ids

    assert draw(seed=5) == draw(seed=5)
    assert draw(seed=5) != draw(seed=6)
    assert len({tuple(draw()) for _ in range(4)}) > 1


def test_drafts_are_really_accepted_and_pruned(service):
    """Guards the tests above against a server that never speculates."""
    service.set_policy("fixed")
    answer = ask(service, input_ids=[4, 5, 6, 7], max_tokens=60, end_id=-1).wait()
    summary = json.loads(answer.chunks[-1]["speculation"][0])
    assert summary["num_accepted_tokens"] > 10
    assert summary["mean_acceptance_length"] > 1.5
    assert summary["num_kept_tokens"] == summary["num_draft_tokens"] > summary["num_accepted_tokens"]
    assert answer.chunks[-1]["num_output_tokens"][0] == 60
