"""What the target is asked: a stream of prompts that depends on nothing but its seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from python_backend.settings import WORKLOADS, Workload
from training.corpus.grammar import Grammar, load_grammar

MIX: dict[Workload, float] = {"chat": 0.40, "code": 0.32, "math": 0.28}
MAGPIE = 0.5  # share of prompts whose user turn the model writes itself
FOLLOWED = 0.12  # share of conversations with a second user turn, where the first answer is short
CAP, LONG_CAP, LONG = 256, 320, 0.1  # response tokens; a share of the answers may be longer
TEMPERATURES = (0.7, 0.8, 0.9, 1.0)  # of the half that is not decoded by argmax


@dataclass(frozen=True)
class Request:
    """One conversation to be written."""

    domain: Workload
    prompt: tuple[int, ...]  # ids to begin with
    magpie: bool  # the model goes on writing the user turn; else the prompt ends where the answer begins
    follow_up: tuple[int, ...]  # ids of a second user turn, up to where its answer begins; empty for none
    temperature: float
    cap: int  # response tokens
    seed: int  # of the engine's noise


@dataclass(frozen=True)
class ChatFormat:
    """The chat template cut into ids."""

    before_user: tuple[int, ...]  # system prompt and user header
    after_user: tuple[int, ...]  # end of the user's turn and the assistant's header
    between: tuple[int, ...]  # after the end token of an answer: the next user header


def read_format(tokenizer: Any) -> ChatFormat:
    """Cut the template around the contents of a sample conversation. Raises ValueError where it has other tokens."""
    user, answer = "\x11", "\x12"
    turns = [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    turns.append({"role": "user", "content": user})
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    before, after, rest = text.split(user)
    header, between = after.split(answer)
    if header != rest:
        raise ValueError(f"the chat template ends the first user turn with {header!r}, the second with {rest!r}")
    end = tokenizer.eos_token
    if not between.startswith(end):
        raise ValueError(f"the chat template ends an answer with {between!r}, expected the end token {end!r} first")
    return ChatFormat(*(tuple(encode(tokenizer, t)) for t in (before, header, between.removeprefix(end))))


def encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


class RequestSource:
    """Draws requests from the seed lists of one side of the split."""

    def __init__(self, tokenizer: Any, seed: tuple[int, ...], held_out: bool) -> None:
        self.tokenizer = tokenizer
        self.format = read_format(tokenizer)
        self.random = np.random.default_rng(seed)
        self.grammars: dict[Workload, Grammar] = {d: load_grammar(d).split(held_out) for d in WORKLOADS}

    def endless(self) -> Iterator[Request]:
        """Domains by the mix, half of the answers by argmax."""
        while True:
            domain = WORKLOADS[self.random.choice(len(WORKLOADS), p=[MIX[d] for d in WORKLOADS])]
            yield self.draw(domain)

    def evaluation(self, per_domain: int, temperature: float) -> list[Request]:
        """So many of each domain, all at one temperature and single-turn; the same prompts at every temperature."""
        drawn = [self.draw(domain) for domain in WORKLOADS for _ in range(per_domain)]
        return [replace(r, temperature=temperature, cap=CAP, follow_up=()) for r in drawn]

    def draw(self, domain: Workload) -> Request:
        """The next request of a domain."""
        grammar, chance = self.grammars[domain], self.random.random
        magpie = bool(chance() < MAGPIE)
        text = grammar.opener(self.random) if magpie else grammar.prompt(self.random)
        prompt = [*self.format.before_user, *encode(self.tokenizer, text)]
        follow_up: list[int] = []
        if chance() < FOLLOWED:
            asked = encode(self.tokenizer, grammar.follow_up(self.random))
            follow_up = [*self.format.between, *asked, *self.format.after_user]
        return Request(
            domain=domain,
            prompt=tuple(prompt if magpie else [*prompt, *self.format.after_user]),
            magpie=magpie,
            follow_up=tuple(follow_up),
            temperature=0.0 if chance() < 0.5 else float(self.random.choice(TEMPERATURES)),
            cap=LONG_CAP if chance() < LONG else CAP,
            seed=int(self.random.integers(1 << 63)),
        )
