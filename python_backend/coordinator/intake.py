"""From a client's fields to the sequence that the loop serves: prompt, limits, sampling."""

from __future__ import annotations

import time

from python_backend.coordinator import request
from python_backend.coordinator.reply import Reply
from python_backend.coordinator.request import Fields, invalid
from python_backend.coordinator.router import route
from python_backend.coordinator.sequence import Sequence
from python_backend.coordinator.stream import TextStream
from python_backend.coordinator.text import TextCodec
from python_backend.sampling.params import SamplingParams
from python_backend.settings import Settings


class Intake:
    """Checks what needs the tokenizer, the settings or the target. Any thread may use it."""

    def __init__(self, settings: Settings, codec: TextCodec) -> None:
        self._settings, self._codec = settings, codec
        self.vocabulary_size = 0  # of the target; 0 until it has said so

    def sequence(self, fields: Fields, reply: Reply, request_id: str, timeout_s: float) -> Sequence:
        """What the loop serves. timeout_s: 0 = the settings' deadline. Raises RequestError (INVALID_ARG)."""
        limits = self._settings.coordinator
        tokens, prompt_text = self._prompt(fields)
        if len(tokens) >= limits.max_length:
            raise invalid(f"prompt has {len(tokens)} tokens, the limit is {limits.max_length - 1}")
        workload = route(prompt_text) if fields.workload == "auto" else fields.workload
        depth = limits.depth if fields.num_draft_tokens is None else min(fields.num_draft_tokens, limits.depth)
        return Sequence(
            request_id=request_id,
            tokens=tokens,
            prompt_length=len(tokens),
            max_tokens=min(fields.max_tokens or limits.default_max_tokens, limits.max_length - len(tokens)),
            params=self._sampling(fields),
            depth=depth,
            drafter=self._settings.drafter_of(workload, fields.thinking) if depth else "",
            also=self._settings.also if depth else (),
            workload=workload,
            undecided=fields.workload == "auto",
            thinking=fields.thinking,
            stream=fields.stream,
            echo="" if fields.exclude_input_in_output else prompt_text,
            text=TextStream(self._codec.decode, fields.stop_words),
            reply=reply,
            deadline=time.monotonic() + (timeout_s or limits.deadline_s),
        )

    def _prompt(self, fields: Fields) -> tuple[list[int], str]:
        """(tokens, text) of the one prompt that was given."""
        given = [name for name in ("text_input", "messages", "input_ids") if getattr(fields, name) is not None]
        if len(given) != 1:
            raise invalid(f"give exactly one of text_input, messages and input_ids; got {given or 'none'}")
        if fields.messages is not None:
            tokens = self._codec.render(request.parse_messages(fields.messages), fields.thinking)
            text = self._codec.decode(tokens)
        elif fields.input_ids is not None:
            tokens = list(fields.input_ids)
            if wrong := [t for t in tokens if self.vocabulary_size and not 0 <= t < self.vocabulary_size]:
                raise invalid(f"input_ids holds {wrong[0]}, the vocabulary has {self.vocabulary_size} tokens")
            text = self._codec.decode(tokens)
        else:
            text = fields.text_input or ""
            tokens = self._codec.encode(text)
        if not tokens:
            raise invalid(f"{given[0]} is empty")
        return tokens, text

    def _sampling(self, fields: Fields) -> SamplingParams:
        end_ids = self._codec.end_ids if fields.end_id is None else (fields.end_id,) if fields.end_id >= 0 else ()
        return SamplingParams(
            temperature=fields.temperature,
            top_k=fields.top_k,
            top_p=fields.top_p,
            min_p=fields.min_p,
            repetition_penalty=fields.repetition_penalty,
            presence_penalty=fields.presence_penalty,
            frequency_penalty=fields.frequency_penalty,
            seed=request.fresh_seed() if fields.seed is None else fields.seed,
            min_tokens=fields.min_tokens,
            end_ids=end_ids,
            bad_words=tuple(ids for word in fields.bad_words for ids in self._codec.encode_banned(word)),
            return_log_probs=fields.return_log_probs,
        )
