"""A profile export by hand, in perf_analyzer 2.60's form, with numbers that one can work out in the head."""

from __future__ import annotations

import json
from typing import Any

MS = 1_000_000  # ns
START = 1_700_000_000_000_000_000
SUMMARY = ("speculation", "num_input_tokens", "num_output_tokens", "acceptance_rate")


def output(ids: Any, text: str = "x", **last: Any) -> dict[str, Any]:
    """One response; outputs that it does not carry are empty strings."""
    return {"text_output": text, "output_ids": ids, "finish_reason": ""} | dict.fromkeys(SUMMARY, "") | last


def last(finish_reason: str, passes: int, accepted: int) -> dict[str, Any]:
    speculation = {
        "mean_acceptance_length": 1 + accepted / passes,
        "num_drafts": passes,
        "num_accepted_tokens": accepted,
    }
    return {"finish_reason": finish_reason, "speculation": json.dumps(speculation)}


def request(start_ms: int, response_ms: list[int], outputs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "timestamp": START + start_ms * MS,
        "request_inputs": {"messages": "[]", "max_tokens": 4},
        "response_timestamps": [START + ms * MS for ms in response_ms],
        "response_outputs": outputs,
    }


STREAMED = request(0, [100, 200, 300], [output(5), output([6, 7]), output(8, **last("length", passes=3, accepted=1))])
AT_ONCE = request(100, [500], [output([1, 2, 3], **last("stop", passes=1, accepted=2))])
BROKEN_OFF = request(200, [250], [output(5)])


def export_of(*requests: dict[str, Any]) -> str:
    experiment = {"experiment": {"mode": "concurrency", "value": 2}, "requests": requests, "window_boundaries": []}
    return json.dumps({"experiments": [experiment], "version": "0.0.0", "service_kind": "triton", "endpoint": ""})
