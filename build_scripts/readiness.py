"""Whether a running server still serves, as an operator would ask: Triton's own readiness, and the coordinator's."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx

from build_scripts import server_log

READY_METRIC = re.compile(r"^angelspec_ready(?:\{.*\})? (\S+)$", re.MULTILINE)
OPEN_METRIC = re.compile(r"^angelspec_open_requests(?:\{.*\})? (\S+)$", re.MULTILINE)
TIMEOUT_S = 2.0


def is_ready(http_url: str, metrics_url: str) -> bool | None:
    """None where it does not say: a busy server may answer late."""
    try:
        ready = httpx.get(f"http://{http_url}/v2/health/ready", timeout=TIMEOUT_S).status_code == httpx.codes.OK
        metric = READY_METRIC.search(httpx.get(f"http://{metrics_url}/metrics", timeout=TIMEOUT_S).text)
    except httpx.TransportError:
        return None
    return ready and (metric is None or float(metric[1]) > 0)


def open_requests(metrics_url: str) -> float | None:
    """How many requests wait for their last answer; None where the server does not say."""
    try:
        metric = OPEN_METRIC.search(httpx.get(f"http://{metrics_url}/metrics", timeout=TIMEOUT_S).text)
    except httpx.TransportError:
        return None
    return float(metric[1]) if metric else None


def process_of(model: str, mark: str) -> bool:
    """Whether a model's process lives. mark: a word that all processes of the server have in their command lines.
    Triton itself says that a model is ready whose process has died, until something is asked of it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            line = (folder / "cmdline").read_bytes()
            if f"/{model}/1/model.py".encode() in line and mark.encode() in line:
                return True
    return False


class Watch:
    """Tells of changes, each once."""

    def __init__(self, http_url: str, metrics_url: str, log: Path, coordinator_lives: Callable[[], bool]) -> None:
        self._urls, self._log, self._lives = (http_url, metrics_url), log, coordinator_lives
        self._ready = True
        self._seen = server_log.length(log)  # lines that were there while all was well

    def look(self) -> str:
        """What changed since the last look, in words; empty where nothing did."""
        lives = self._lives()
        ready = is_ready(*self._urls) if lives else False
        if ready is None or ready == self._ready:
            if ready:
                self._seen = server_log.length(self._log)
            return ""
        self._ready = ready
        if ready:
            return "ready again"
        reason = server_log.last_error(self._log, self._seen) or "the log gives no reason"
        reason = reason if lives else "the coordinator's process died; restart the server"
        return f"not ready: {reason} (log: {self._log})"
