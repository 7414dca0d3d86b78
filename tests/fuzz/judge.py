"""What an outcome is: an answer, a refusal that helps, or harm."""

from __future__ import annotations

import re
from typing import Literal

from tests.fuzz import schema
from tests.fuzz.case import Case
from tests.fuzz.send import Outcome

Verdict = Literal["answered", "refused by name", "refused by Triton", "deadline", "cancelled", "left", "hurt"]

# Triton reads a request before a model does; these are its words for what it does not take.
TRITON = tuple(
    re.compile(pattern)
    for pattern in (
        r"^failed to parse the request JSON buffer",
        r"\bUnable to parse ('|JSON)",
        r"\battempt to (access JSON|get members for non-object)",
        r"(?s)\bparameter '.*' has invalid type",
        r"^Unexpected byte size|unexpected (total )?byte size|unexpected number of",
        r"^\[?.*unexpected shape for input",
        r"batch[ -]size",
        r"^unexpected inference (in|out)put '",
        r"^expected \d+ (in|out)puts? but got \d+",
        r"unexpected datatype|has invalid (datatype|data ?type)|data-type|datatype",
        r"generate expects model to produce exactly 1 response",
        r"incorrect shape|invalid shape|shape\b.*(negative|overflow|exceed)",
    )
)
BUG = re.compile(r"Traceback|\w+Error\b|\w+Exception\b|unexpectedly|decode step failed|died")
# Triton's error repeats the request's id, and gRPC carries an error in a header of at most 16 KiB.
LONG_ID, NO_ROOM = 8192, "received metadata size exceeds"
REASONS = ("stop", "length", "cancelled")


def judge(case: Case, outcome: Outcome) -> tuple[Verdict, str]:
    """The verdict, and for harm the symptom."""
    if outcome.left:
        return "left", ""
    if outcome.status in ("lost", "late"):
        return "hurt", f"{outcome.status}: {outcome.error}"
    if outcome.ends != 1:
        return "hurt", f"{outcome.ends} ends of one request, status {outcome.status}, error {outcome.error[:200]!r}"
    if not outcome.error:
        return ("hurt", symptom) if (symptom := flaw(case, outcome)) else ("answered", "")
    return refusal(case, outcome)


def refusal(case: Case, outcome: Outcome) -> tuple[Verdict, str]:
    text = outcome.error
    if NO_ROOM in text and len(case.request_id) > LONG_ID:
        return "refused by Triton", ""
    if any(pattern.search(text) for pattern in TRITON):
        return "refused by Triton", ""
    if "deadline exceeded" in text:
        return "deadline", ""
    if "stopped on request" in text or "was cancelled" in text:
        return "cancelled", ""
    if BUG.search(text):
        return "hurt", f"a bug shows: {text[:300]}"
    if not names_something(text):
        return "hurt", f"the error names no input: {text[:300]}"
    if outcome.status.startswith("5") or outcome.status == "INTERNAL":
        return "hurt", f"status {outcome.status} for bad input: {text[:300]}"
    return "refused by name", ""


def names_something(text: str) -> bool:
    """Whether an error says which input it is about."""
    others = {"policy", "operation", "prompt", "control requests", "timeout", "request id", "request parameter"}
    named = {*schema.names(), *others}
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in named)


def flaw(case: Case, outcome: Outcome) -> str:
    """What is wrong with an answer; empty where nothing is."""
    last = outcome.responses[-1] if outcome.responses else {}
    reason = (last.get("finish_reason") or [""])[0]
    if reason not in REASONS:
        return f"finish_reason is {reason!r} in the last response of {len(outcome.responses)}"
    if "text_output" not in last:
        return f"the last response has no text_output, only {sorted(last)}"
    count = (last.get("num_output_tokens") or [None])[0]
    if count != len(outcome.tokens):
        return f"num_output_tokens is {count}, {len(outcome.tokens)} came"
    return ""
