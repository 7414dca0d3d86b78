"""A prompt starts with the rows that the target holds of it; its drafter sees those rows too."""

import pytest

from python_backend.engine import EngineError, EngineLostError
from tests.support.host import ask, settings_for, start, wait_until
from tests.support.toy import ToyDrafter, ToyTarget, toy_decode

BLOCK, PREFILL = 8, 16
SYSTEM = [7 * i % 94 for i in range(50)]


@pytest.fixture(params=[0, 3], ids=["no features", "features"])
def parts(request, tmp_path):
    target = ToyTarget(feature_size=request.param, prefix_block=BLOCK)
    drafter = ToyDrafter(feature_size=request.param)
    settings = settings_for(["drafter_toy"], cache_dir=tmp_path, coordinator={"prefill_rows": PREFILL})
    service = start(settings, target, {"drafter_toy": drafter})
    target.prefixes.clear()  # of profiling
    target.steps.clear()
    yield service, target
    service.shutdown()


def prefilled_rows(target, prompt_length):
    """Rows below the prompt's length that passes computed."""
    return sum(
        int(min(past + rows, prompt_length) - past)
        for step in target.steps
        for past, rows in zip(step.past_length, step.row_count, strict=True)
        if past < prompt_length
    )


def greedy(service, prompt, count=20):
    return ask(service, input_ids=prompt, max_tokens=count, end_id=-1)


def test_a_second_turn_computes_only_what_is_new(parts):
    service, target = parts
    answer = greedy(service, SYSTEM).wait().ids
    target.steps.clear()
    second = [*SYSTEM, *answer, 1, 2, 3]  # 73 tokens: of 70 with the answer, 69 were committed
    assert greedy(service, second).wait().ids == toy_decode(second, 20)
    assert target.steps[0].past_length[0] == 64
    assert prefilled_rows(target, len(second)) == 73 - 64


def test_prompts_that_arrive_together_share_what_the_first_of_them_computed(parts):
    service, target = parts
    prompts = [[*SYSTEM, i, i + 1] for i in range(8)]
    answers = [greedy(service, prompt) for prompt in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.wait().ids == toy_decode(prompt, 20)
    whole = sum(len(p) for p in prompts)
    held = sum(int(o.row_count.sum()) for o in target.openings)
    assert held == whole, "every prompt is asked for once"
    assert prefilled_rows(target, len(SYSTEM) + 2) < whole / 2


def test_an_equal_prompt_still_computes_its_last_row(parts):
    service, target = parts
    prompt = SYSTEM[:48]
    first = greedy(service, prompt).wait().ids
    target.steps.clear()
    assert greedy(service, prompt).wait().ids == first
    assert prefilled_rows(target, 48) == 8


def test_a_prompt_within_one_block_is_not_asked_for(parts):
    service, target = parts
    assert greedy(service, SYSTEM[:BLOCK]).wait().ids == toy_decode(SYSTEM[:BLOCK], 20)
    assert target.openings == []


def test_rows_of_a_cancelled_request_serve_the_next(parts):
    service, target = parts
    answer = ask(service, input_ids=SYSTEM, max_tokens=200, end_id=-1, stream=True)
    wait_until(lambda: answer.chunks)
    answer.cancelled = True
    answer.wait()
    target.steps.clear()
    assert greedy(service, SYSTEM).wait().ids == toy_decode(SYSTEM, 20)
    assert prefilled_rows(target, len(SYSTEM)) == 50 - 48


def test_an_opening_that_fails_costs_time_and_nothing_else(parts, monkeypatch):
    service, target = parts
    greedy(service, SYSTEM).wait()
    monkeypatch.setattr(target, "open", raising(EngineError("no")))
    target.steps.clear()
    answer = greedy(service, SYSTEM).wait()
    assert answer.error is None
    assert answer.ids == toy_decode(SYSTEM, 20)
    assert prefilled_rows(target, len(SYSTEM)) == 50


def test_a_target_that_died_in_an_opening_fails_who_ran(parts, monkeypatch):
    service, target = parts
    running = ask(service, input_ids=SYSTEM[:5], max_tokens=240, end_id=-1, stream=True)
    wait_until(lambda: running.chunks)
    monkeypatch.setattr(target, "open", raising(EngineLostError("died")))
    assert "died" in str(greedy(service, SYSTEM).wait().error)
    assert "died" in str(running.wait().error)
    monkeypatch.undo()
    assert greedy(service, SYSTEM).wait().ids == toy_decode(SYSTEM, 20)


def raising(error):
    def call(*_):
        raise error

    return call
