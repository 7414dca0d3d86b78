"""Unload models before a server ends: new requests are refused, running ones finish while the engines still answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import httpx

POLL_S = 0.1
REST_TIMEOUT_S = 2.0
IDLE_S = 5.0  # an idle model unloads within about one second

IsRunning = Callable[[], bool]
OpenRequests = Callable[[], float | None]  # None: not known


def drain(
    http_url: str, models: Sequence[str], within_s: float, is_running: IsRunning, open_requests: OpenRequests
) -> str:
    """Unload one after the other. Returns what did not go as it should, in words; nothing where all did.

    Triton up to 2.51 keeps a model loaded for ever when a client cancelled a gRPC stream at the instant of its last
    response (its issue 7626): a model without open requests is therefore waited for only IDLE_S.
    """
    deadline = time.monotonic() + within_s
    with httpx.Client(base_url=f"http://{http_url}", timeout=REST_TIMEOUT_S) as client:
        for model in models:
            answer = _ask(client, f"/v2/repository/models/{model}/unload", deadline, is_running)
            if answer is not None and answer.is_error:
                return ""  # a server that was not started in explicit mode
            idle_since = math.inf
            while _is_loaded(client, model, deadline, is_running):
                now = time.monotonic()
                idle_since = min(idle_since, now) if open_requests() == 0 else math.inf
                if now - idle_since >= IDLE_S:
                    return f"'{model}' had no open requests and did not unload within {IDLE_S:g} s"
                if now >= deadline:
                    return f"'{model}' did not unload within {within_s:g} s (coordinator.drain_s)"
                time.sleep(POLL_S)
    return ""


def _is_loaded(client: httpx.Client, model: str, deadline: float, is_running: IsRunning) -> bool:
    answer = _ask(client, "/v2/repository/index", deadline, is_running)
    if answer is None:
        return is_running()
    states = {m["name"]: m.get("state") for m in answer.json()}
    return states.get(model) in ("READY", "UNLOADING")


def _ask(client: httpx.Client, path: str, deadline: float, is_running: IsRunning) -> httpx.Response | None:
    """Until there is an answer: a busy server may be late. None where the time is over or the server has ended."""
    while is_running():
        try:
            return client.post(path)
        except httpx.TransportError:
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
    return None
