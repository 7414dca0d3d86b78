"""Whether speculation pays, in one sentence."""

from __future__ import annotations

from clients.wire import Speculation

EVEN = 0.02  # differences below this are none

HOW_TO_STOP = "num_draft_tokens 0 in a request, or budget.policy off in the settings, decodes plainly"


def predicted(speculation: Speculation) -> str:
    """By the server's cost table; empty where it said nothing."""
    gain = speculation.gain
    if gain is None or not speculation.num_draft_tokens:
        return ""
    if gain < 1 - EVEN:
        return (
            f"speculation does not pay: by the server's cost table plain decoding is {1 / gain - 1:.0%} faster; "
            f"{HOW_TO_STOP}"
        )
    if gain > 1 + EVEN:
        return f"speculation pays: by the server's cost table it is {gain - 1:.0%} faster than plain decoding"
    return "speculation makes no difference: by the server's cost table plain decoding is as fast"


def users(count: int) -> str:
    return "1 user" if count == 1 else f"{count} users"


def measured(count: int, plain: float, spec: float) -> str:
    """From output tokens/s of both at one concurrency."""
    figures = f"{spec:.1f} against {plain:.1f} tokens/s"
    if spec > plain * (1 + EVEN):
        return f"{users(count)}: speculation pays, {spec / plain - 1:.0%} faster than plain decoding ({figures})"
    if plain > spec * (1 + EVEN):
        return f"{users(count)}: speculation does not pay, plain decoding is {plain / spec - 1:.0%} faster ({figures})"
    return f"{users(count)}: speculation makes no difference ({figures})"
