"""A chat's next turn is served from the rows of those before."""

from __future__ import annotations

import time

import pytest

from clients import transport, wire
from tests.support.host import wait_until

pytestmark = pytest.mark.server

HELD, COMPUTED = "angelspec_held_prompt_tokens_total", "angelspec_prompt_tokens_total"
STORY = "Once there was a clock that ran backwards, in a house at the edge of the woods. " * 8


def settled(read):
    """What is read once it no longer changes: metrics are published twice a second."""
    value = None
    while value != (value := read()):
        time.sleep(1.2)
    return value


def test_a_second_turn_starts_from_the_first_and_answers_the_same(server):
    first = [("user", STORY + "Continue this story in one sentence.")]
    answer = transport.generate({"messages": wire.chat_messages(*first), "max_tokens": 40}, server.http_url)
    before = settled(lambda: (server.metric(HELD), server.metric(COMPUTED)))
    turns = [*first, ("assistant", answer.text), ("user", "And then?")]
    request = {"messages": wire.chat_messages(*turns), "max_tokens": 30, "min_tokens": 30}
    again = [transport.generate(request, server.http_url) for _ in range(2)]
    assert again[0].token_ids == again[1].token_ids
    total = 2 * again[0].summary.num_input_tokens

    def counted():
        held, computed = server.metric(HELD) - before[0], server.metric(COMPUTED) - before[1]
        return held + computed == total and held > 0.8 * total

    wait_until(counted)
