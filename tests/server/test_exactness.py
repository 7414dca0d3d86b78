"""The served output is the target's own, token for token, whatever the policy, the depth and the batch mates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from clients import transport, wire
from tests.server.near_ties import margin

pytestmark = pytest.mark.server

TOKENS = 56
NEAR_TIE = 2e-3  # gap of the two best scores below which float32 rounding may decide
ENOUGH = 5000

CHAT = [
    "What should I cook tonight with rice and eggs?",
    "Write a short letter to a friend who moved to another city.",
    "Why is the sky blue? Explain it to a child.",
    "Give me three ideas for a birthday party.",
    "Tell me about the history of Rome in a few sentences.",
    "How do I learn to play the guitar?",
]
CODE = [
    "Write a Python function that reverses a string.",
    "Rewrite this code with type hints:\n```python\ndef add(a, b):\n    total = a + b\n    return total\n```",
    "Write a SQL query that counts the orders of each customer.",
    "Write a Python class for a stack with push and pop.",
    "Show a loop in JavaScript that prints the numbers from 1 to 10.",
]
MATH = [
    "Tom has 3 apples and buys 4 more. How many apples does he have?",
    "Solve the equation 2 * x + 3 = 11 step by step.",
    "A train travels 60 km in one hour. How far does it travel in 5 hours?",
    "Calculate 12 * 12 and explain how.",
    "What is 15 percent of 80?",
]
PROMPTS = CHAT + CODE + MATH  # 16


@dataclass(frozen=True)
class Mismatch:
    request: int
    position: int
    margin: float


def requests(temperature: float) -> list[dict[str, object]]:
    return [
        {
            "messages": wire.chat_messages(("user", prompt)),
            "max_tokens": TOKENS,
            "min_tokens": TOKENS,  # no early end: more tokens to compare
            "temperature": temperature,
            "seed": 1000 + i,
            "top_p": 0.9 if temperature and i % 3 == 0 else 0.0,
            "top_k": 40 if temperature and i % 3 == 1 else 0,
            "repetition_penalty": 1.2 if i % 5 == 4 else 1.0,
        }
        for i, prompt in enumerate(PROMPTS)
    ]


def answer(request, http_url, **changes):
    return list(transport.generate({**request, **changes}, http_url).token_ids)


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["temperature 0", "temperature 1"])
def plain(request, server):
    """Plain decoding, each request alone."""
    server.set_policy("off")
    asked = requests(request.param)
    return asked, [answer(r, server.http_url, num_draft_tokens=0) for r in asked]


def mismatches(asked, expected, got) -> list[Mismatch]:
    found = []
    for i, (want, have) in enumerate(zip(expected, got, strict=True)):
        position = next((t for t, (a, b) in enumerate(zip(want, have, strict=True)) if a != b), None)
        if position is not None:
            found.append(Mismatch(i, position, margin(asked[i], want[:position], want[position], have[position])))
    return found


def test_any_policy_and_depth_among_mixed_requests_gives_the_plain_tokens(server, plain, record_property):
    asked, expected = plain
    compared, ties, real = 0, [], []
    for policy, depth in (("off", 7), ("fixed", 7), ("fixed", 2), ("dcut", 7), ("dcut", 3), ("dcut", 1)):
        server.set_policy(policy)
        with ThreadPoolExecutor(len(asked)) as pool:
            got = list(pool.map(lambda r, d=depth: answer(r, server.http_url, num_draft_tokens=d), asked))
        assert [len(ids) for ids in got] == [TOKENS] * len(asked)
        compared += len(asked) * TOKENS
        for mismatch in mismatches(asked, expected, got):
            (ties if mismatch.margin < NEAR_TIE else real).append((policy, depth, mismatch))
    print(f"\n{compared} tokens compared, {len(real)} mismatches, {len(ties)} near-ties: {ties}")
    record_property("tokens_compared", compared)
    record_property("near_ties", len(ties))
    assert not real
    assert compared >= ENOUGH
    assert len(ties) <= compared // 500


@pytest.mark.parametrize("policy", ["fixed", "dcut"])
def test_a_request_alone_gives_the_plain_tokens(server, plain, policy):
    asked, expected = plain
    server.set_policy(policy)
    chosen = [0, 6, 7, 11]
    got = [answer(asked[i], server.http_url) for i in chosen]
    found = mismatches([asked[i] for i in chosen], [expected[i] for i in chosen], got)
    assert [m for m in found if m.margin >= NEAR_TIE] == []


def test_speculation_is_really_on(server):
    """Guards the tests above against a server that never speculates."""
    server.set_policy("fixed")
    result = transport.generate(requests(0.0)[7], server.http_url)
    assert result.summary.speculation.num_accepted_tokens > 0
    assert result.summary.speculation.num_kept_tokens > result.summary.speculation.num_accepted_tokens
