"""From a client's fields to the sequence that the loop serves: prompt, limits, sampling."""

from __future__ import annotations

import time
from collections.abc import Iterable

from python_backend.coordinator import request
from python_backend.coordinator.bounds import JSON_BYTES_A_TEXT_BYTE, TEXT_BYTES_A_TOKEN
from python_backend.coordinator.messages import parse_messages
from python_backend.coordinator.reply import Reply
from python_backend.coordinator.request import Fields, invalid
from python_backend.coordinator.router import route
from python_backend.coordinator.sequence import Sequence
from python_backend.coordinator.stream import TextStream
from python_backend.coordinator.text import TextCodec
from python_backend.sampling.params import SamplingParams
from python_backend.settings import Settings

PROMPTS = ("text_input", "messages", "input_ids")
NONE = -1  # an id that switches its setting off
MICROSECONDS = 1e-6

# What NVIDIA's `tensorrt_llm` model cannot do for us, and the value that does not ask for it: it has no input for the
# first, takes what each pass adds for the whole output, and gives log probabilities of no draft.
NOT_STOCK = {"min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "return_log_probs": False}


class Intake:
    """Checks what needs the tokenizer, the settings or the target. Any thread may use it."""

    def __init__(self, settings: Settings, codec: TextCodec) -> None:
        self._settings, self._codec = settings, codec
        self.vocabulary_size = codec.vocabulary_size  # until the target has told its own

    def sequence(self, fields: Fields, reply: Reply, request_id: str, timeout_s: float) -> Sequence:
        """What the loop serves. timeout_s: 0 = the settings' deadline. Raises RequestError (INVALID_ARG)."""
        limits = self._settings.coordinator
        if self._settings.target.engine == "stock":
            check_stock(fields)
        tokens, prompt_text = self._prompt(fields)
        self._check_ids("end_id", [fields.end_id] if fields.end_id not in (None, NONE) else ())
        self._check_ids("pad_id", [fields.pad_id] if fields.pad_id not in (None, NONE) else ())
        max_tokens = min(fields.max_tokens or limits.default_max_tokens, limits.max_length - len(tokens))
        workload = route(prompt_text) if fields.workload == "auto" else fields.workload
        depth = limits.depth if fields.num_draft_tokens is None else min(fields.num_draft_tokens, limits.depth)
        return Sequence(
            request_id=request_id,
            tokens=tokens,
            prompt_length=len(tokens),
            max_tokens=max_tokens,
            params=self._sampling(fields, max_tokens),
            depth=depth,
            drafter=self._settings.drafter_of(workload, fields.thinking) if depth else "",
            shared_drafters=self._settings.shared_drafters if depth else (),
            workload=workload,
            undecided=fields.workload == "auto",
            thinking=fields.thinking,
            stream=fields.stream,
            echo="" if fields.exclude_input_in_output or fields.stream else prompt_text,
            text=self._stream(fields.stop_words),
            reply=reply,
            deadline=time.monotonic() + (timeout_s or fields.timeout * MICROSECONDS or limits.deadline_s),
            perf_metrics=fields.return_perf_metrics,
        )

    def _prompt(self, fields: Fields) -> tuple[list[int], str]:
        """(tokens, text) of the one prompt that was given; an empty one beside another is none."""
        given = [name for name in PROMPTS if getattr(fields, name) is not None]
        given = [name for name in given if getattr(fields, name)] or given[:1]
        if len(given) != 1:
            raise invalid(f"give exactly one of text_input, messages and input_ids; got {given or 'none'}")
        limits = self._settings.coordinator
        if given == ["input_ids"]:
            tokens, text = list(fields.input_ids or ()), None
        elif given == ["messages"]:
            tokens, text = self._render(fields.messages or "", fields.thinking), None
        else:
            text = self._short_enough("text_input", fields.text_input or "")
            tokens = self._codec.encode(text)
        if not tokens:
            raise invalid(f"{given[0]} is empty")
        if len(tokens) >= limits.max_length:
            raise invalid(f"prompt has {len(tokens)} tokens, the limit is {limits.max_length - 1}")
        self._check_ids(given[0], tokens)
        return tokens, self._codec.decode(tokens) if text is None else text

    def _render(self, messages: str, thinking: bool) -> list[int]:
        limits = self._settings.coordinator
        most = limits.max_length * TEXT_BYTES_A_TOKEN
        turns = parse_messages(messages, max_turns=limits.max_length, max_bytes=most * JSON_BYTES_A_TEXT_BYTE)
        self._short_enough("messages", "".join(text for turn in turns for text in turn.values()))
        return self._codec.render(turns, thinking, limits.allow_control_tokens)

    def _short_enough(self, name: str, text: str) -> str:
        most = self._settings.coordinator.max_length * TEXT_BYTES_A_TOKEN
        if (size := len(text.encode())) > most:
            raise invalid(
                f"{name} has {size} bytes of text, the limit is {most}: {TEXT_BYTES_A_TOKEN} for each token of a "
                "sequence, prompt and output"
            )
        return text

    def _check_ids(self, name: str, ids: Iterable[int]) -> None:
        """Raise RequestError for a token that the target does not have."""
        size = self.vocabulary_size
        if size and (wrong := [token for token in ids if not 0 <= token < size]):
            raise invalid(f"{name} holds {wrong[0]}, the vocabulary has {size} tokens")

    def _stream(self, stop_words: tuple[str, ...]) -> TextStream:
        controls = {
            token: text for text, token in self._codec.control_ids.items() if any(text in word for word in stop_words)
        }
        return TextStream(self._codec.decode, stop_words, controls)

    def _bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        sequences = [ids for word in words for ids in self._codec.encode_banned(word)]
        self._check_ids("bad_words", (token for ids in sequences for token in ids))
        return tuple(dict.fromkeys(sequences))

    def _sampling(self, fields: Fields, max_tokens: int) -> SamplingParams:
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
            min_tokens=min(fields.min_tokens, max_tokens),
            end_ids=end_ids,
            bad_words=self._bad_words(fields.bad_words),
            return_log_probs=fields.return_log_probs,
        )


def check_stock(fields: Fields) -> None:
    """Raise RequestError naming the first field that a stock engine cannot honour."""
    for name, off in NOT_STOCK.items():
        if (value := getattr(fields, name)) != off:
            raise invalid(f"{name} is {value}: with target.engine stock it has no effect, leave it out")
