from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from python_backend.settings import WORKLOADS
from training.corpus.grammar import HELD_OUT, HOLE, Grammar, load_grammar

PARTS = ("prompts", "openers", "follow_ups")


def grammar(*prompts: str, **lists: tuple[str, ...]) -> Grammar:
    return Grammar(prompts, (), (), lists, {"few": ("two", "three")})


@pytest.mark.parametrize("domain", WORKLOADS)
def test_no_entry_is_on_both_sides_of_the_split(domain):
    train, held_out = (load_grammar(domain).split(side) for side in (False, True))
    for part in PARTS:
        assert not (set(getattr(train, part)) & set(getattr(held_out, part))) - {""}
    for name in train.lists:
        assert not set(train.lists[name]) & set(held_out.lists[name]), name


@pytest.mark.parametrize("domain", WORKLOADS)
def test_the_split_loses_no_entry(domain):
    whole = load_grammar(domain)
    sides = [whole.split(side) for side in (False, True)]
    for part in PARTS:
        assert set(getattr(whole, part)) == {e for s in sides for e in getattr(s, part)}
    for name, entries in whole.lists.items():
        assert set(entries) == {e for s in sides for e in s.lists[name]}


@pytest.mark.parametrize(("domain", "held_out"), product(WORKLOADS, (False, True)))
def test_every_hole_can_be_filled_on_both_sides(domain, held_out):
    side, random = load_grammar(domain).split(held_out), np.random.default_rng(0)
    for part in PARTS:
        entries = getattr(side, part)
        assert entries
        for entry in entries:
            assert not HOLE.search(Grammar((entry,), (), (), side.lists, side.words).prompt(random))


@pytest.mark.parametrize("domain", WORKLOADS)
def test_about_one_entry_in_eight_is_held_out(domain):
    whole = load_grammar(domain)
    entries = [len(whole.prompts), *(len(e) for e in whole.lists.values())]
    held_out = whole.split(True)
    kept = [len(held_out.prompts), *(len(e) for e in held_out.lists.values())]
    assert 0.5 < sum(kept) / sum(entries) * HELD_OUT < 2


def test_the_same_hole_is_the_same_entry_and_a_numbered_one_is_another():
    text = grammar("{city} {city} {city2}", city=("Rome", "Oslo")).prompt(np.random.default_rng(0))
    first, second, third = text.split()
    assert first == second != third


def test_a_number_stays_the_same_where_it_is_named_again():
    for seed in range(20):
        first, second, other = grammar("{a:2-90} {a} {b:1-1}").prompt(np.random.default_rng(seed)).split()
        assert first == second
        assert 2 <= int(first) <= 90
        assert other == "1"


def test_braces_of_code_are_not_holes():
    assert grammar("f() {\n  return {};\n}").prompt(np.random.default_rng(0)) == "f() {\n  return {};\n}"
