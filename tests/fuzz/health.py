"""The server apart from its answers to a case: processes, threads, memory, slots, and what a good request gets."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import psutil

from python_backend.settings import Settings
from tests.fuzz import schema
from tests.fuzz.case import Case, Given
from tests.fuzz.judge import judge
from tests.fuzz.send import Sender

SHM = Path("/dev/shm")
SETTLE_S = 20.0  # for slots to be free and metrics to be published after the last answer
POLL_S = 0.2
IDLE = {"angelspec_waiting_requests": 0, "angelspec_open_requests": 0, "angelspec_running_sequences": 0}


class Served(Protocol):
    ports: dict[str, int]
    shm_prefix: str
    settings: Settings

    @property
    def http_url(self) -> str: ...

    @property
    def grpc_url(self) -> str: ...

    @property
    def metrics_url(self) -> str: ...


@dataclass(frozen=True)
class State:
    """processes: name by pid. threads: by pid. regions: of the server in shared memory."""

    processes: Mapping[int, str]
    threads: Mapping[int, int]
    regions: frozenset[str]
    metrics: Mapping[str, float]


def find_server(http_port: int) -> psutil.Process | None:
    """The tritonserver that listens there."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if f"--http-port={http_port}" in words and "tritonserver" in words[0]:
            return process
    return None


def look(server: Served) -> State:
    """Raises nothing for a server that is gone: its state is empty."""
    main = find_server(server.ports["http"])
    processes: dict[int, str] = {}
    threads: dict[int, int] = {}
    for process in [main, *main.children(recursive=True)] if main else ():
        try:
            model = re.search(r"/(\w+)/1/model\.py", " ".join(process.cmdline()))
            processes[process.pid], threads[process.pid] = (
                model[1] if model else process.name(),
                process.num_threads(),
            )
        except psutil.NoSuchProcess:
            continue
    regions = frozenset(path.name for path in SHM.glob(f"{server.shm_prefix}*"))
    return State(processes, threads, regions, metrics(server))


def metrics(server: Served) -> dict[str, float]:
    try:
        text = httpx.get(f"http://{server.metrics_url}/metrics", timeout=10).text
    except httpx.TransportError:
        return {}
    found = re.findall(r"^(angelspec_\w+)(?:\{\})? (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def harm(before: State, now: State, slots: int, spare_threads: int) -> str:
    """What is not as it was; empty where all is. spare_threads: that tritonserver itself may have more, which keeps
    those it once needed for connections."""
    if before.processes.keys() != now.processes.keys():
        gone = sorted(name for pid, name in before.processes.items() if pid not in now.processes)
        new = sorted(name for pid, name in now.processes.items() if pid not in before.processes)
        return f"processes changed: gone {gone or 'none'}, new {new or 'none'}"
    for name, idle in (IDLE | {"angelspec_free_slots": slots}).items():
        if now.metrics.get(name) != idle:
            return f"{name} is {now.metrics.get(name)}, expected {idle}"
    for name in ("angelspec_thread_deaths_total", "angelspec_drafter_failures_total", "angelspec_failed_passes_total"):
        if now.metrics.get(name, 0) != before.metrics.get(name, 0):
            return f"{name} went from {before.metrics.get(name, 0):g} to {now.metrics.get(name, 0):g}"
    for pid, count in now.threads.items():
        allowed = before.threads[pid] + (spare_threads if now.processes[pid] == "tritonserver" else 0)
        if count > allowed:
            return f"{now.processes[pid]} has {count} threads, had {before.threads[pid]}"
    if more := sorted(now.regions - before.regions):
        return f"shared memory regions are left: {more}"
    return ""


def settled(server: Served, before: State, slots: int, spare_threads: int) -> str:
    """Wait until all is as before. Returns what is not after SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while symptom := harm(before, look(server), slots, spare_threads):
        if time.monotonic() > deadline or symptom.startswith("processes"):
            return symptom
        time.sleep(POLL_S)
    return ""


def ready_models(server: Served) -> tuple[str, ...]:
    """The decoupled models that answer clients here."""
    listed = httpx.post(f"http://{server.http_url}/v2/repository/index", timeout=10).json()
    ready = {model["name"] for model in listed if model.get("state") == "READY"}
    return tuple(name for name in schema.DECOUPLED if name in ready)


def good_requests(models: tuple[str, ...]) -> list[Case]:
    """Greedy and seeded, on every route, as anyone would send them."""
    sampled = (("temperature", "FP32", 1.0), ("seed", "UINT64", 11), ("top_p", "FP32", 0.95))
    made = []
    for route, model in (
        *((route, name) for name in models for route in ("grpc", "generate")),
        ("generate_stream", schema.COORDINATOR),
        ("unary", schema.TWIN),
        ("infer", schema.TWIN),
    ):
        for extra in ((), sampled):
            given: list[tuple[str, str, Any]] = [("text_input", "BYTES", "one two three four one two three")]
            given += [("max_tokens", "INT32", 6), ("min_tokens", "INT32", 6), *extra]
            shape = (1,) if model == schema.TWIN else (1, 1)
            made.append(Case(route, model, tuple(Given(n, t, shape, (v,)) for n, t, v in given)))
    return made


class Canary:
    """Good requests and the tokens that they got first."""

    def __init__(self, sender: Sender, models: tuple[str, ...]) -> None:
        self.cases = good_requests(models)
        self._tokens = [self._ask(sender, case) for case in self.cases]

    def check(self, sender: Sender, number: int) -> str:
        """Send one of them again. Returns what is wrong."""
        case, expected = self.cases[number], self._tokens[number]
        outcome = sender.send(case)
        verdict, symptom = judge(case, outcome)
        if verdict != "answered":
            return f"a good request on {case.model}/{case.route} failed: {symptom or outcome.error}"
        if outcome.tokens != expected:
            return f"a good request on {case.model}/{case.route} got {outcome.tokens}, before {expected}"
        return ""

    def check_all(self, sender: Sender) -> str:
        return next(filter(None, (self.check(sender, i) for i in range(len(self.cases)))), "")

    def _ask(self, sender: Sender, case: Case) -> list[int]:
        outcome = sender.send(case)
        verdict, symptom = judge(case, outcome)
        if verdict != "answered":
            raise RuntimeError(f"{case.model}/{case.route} does not answer a good request: {symptom or outcome.error}")
        return outcome.tokens
