"""A tritonserver of our own over a model repository: `with TritonServer() as server:` in a program or test."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from build_scripts import leftovers, server_log, triton_install
from build_scripts.devices import check_devices
from build_scripts.drain import drain
from build_scripts.leftovers import Claim
from build_scripts.readiness import open_requests
from build_scripts.triton_install import Installation, PreflightError
from python_backend.checkpoints.checkpoint import CheckpointError, resolve_checkpoint
from python_backend.files import sweep_unfinished
from python_backend.settings import COMPATIBLE_MODELS, ROOT, Settings, load
from python_backend.settings_errors import SettingsError

REPOSITORY = ROOT / "model_repository"
COORDINATOR, TWIN, TARGET = "angelspec", "angelspec_infer", "target"
ENSEMBLE = COMPATIBLE_MODELS[0]
HOST = "127.0.0.1"
POLL_S = 0.1
EXIT_S = 10  # how long Triton waits for models and idle connections once all requests are answered
LOG_TAIL = 30
PR_SET_PDEATHSIG = 1
CONTROL = {"ANGELSPEC_MODEL_CONTROL": "explicit"}  # tells the models that they may load a dead one again

Report = Callable[[str], None]


class ServerStartError(RuntimeError):
    """The server did not come up; the message has its reason and the end of its log."""


# what keeps a server from running, each with a message for its user; wrong settings among them
TROUBLE = (PreflightError, ServerStartError, SettingsError, FileNotFoundError)


class TritonServer:
    """Entering starts the server and waits until it is ready; leaving drains and ends it.

    Ports of 0 are chosen. `environment` overrides variables, settings among them. Raises PreflightError where
    something is missing and ServerStartError where the server does not come up.
    """

    def __init__(
        self,
        *,
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        host: str = HOST,
        repository: Path = REPOSITORY,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        report: Report = lambda _: None,
        install: Installation | None = None,
    ) -> None:
        """report: told what is being waited for. log: the server's output; by default a new file under the cache.
        install: by default the one of our environment."""
        given = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        chosen = iter(triton_install.free_ports(host, 3))
        self.ports = {name: port or next(chosen) for name, port in given.items()}
        self.host, self.repository, self.report = host, repository, report
        self._overrides = dict(environment or {})
        with overridden(self._overrides):
            self.settings: Settings = load()
        self._install: Installation = install or triton_install.find_install()
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.log = log or self.settings.cache_dir / "logs" / f"server-{stamp}-{self.ports['http']}.log"
        self.shm_prefix = leftovers.unique_prefix(self.ports["http"])
        self._claim: Claim | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def http_url(self) -> str:
        return f"{self.host}:{self.ports['http']}"

    @property
    def grpc_url(self) -> str:
        return f"{self.host}:{self.ports['grpc']}"

    @property
    def metrics_url(self) -> str:
        return f"{self.host}:{self.ports['metrics']}"

    @property
    def _engines(self) -> list[str]:
        """The models that run engines; drafters in the target's process have none."""
        target = self.settings.target
        stock = [target.stock_model] if target.engine == "stock" else []
        return [*stock, TARGET, *self.settings.drafters_in("own")]

    @property
    def _compatible(self) -> list[str]:
        """The coordinator's further names, as far as this repository has them."""
        wanted = self.settings.coordinator.compatible_models
        return [name for name in wanted if (self.repository / name).is_dir()]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """Raise PreflightError for the first thing that the server would miss."""
        self._install.check()
        for name, port in self.ports.items():
            triton_install.check_port(name, self.host, port)
        check_devices(self.settings)
        try:
            resolve_checkpoint(self.settings)
        except CheckpointError as error:
            raise PreflightError(str(error)) from error

    def start(self) -> None:
        """Remove what killed servers left, start, and wait until requests are served."""
        leftovers.sweep()
        sweep_unfinished(self.settings.cache_dir)
        self.check()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | self._install.environment() | CONTROL | self._overrides
        self._claim = Claim.take(self.shm_prefix)
        try:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    self.command(),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for this program, which drains first
                    preexec_fn=_die_with_parent,
                    pass_fds=[self._claim.held],  # whoever of them is left holds the claim
                )
            self._claim.name_server(self._process.pid)
            self._wait_until_live()
            self.load_coordinator()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> str:
        """Let running requests finish within `drain_s`, then end the server and whatever is left of it. Returns what
        was not in order, in words; nothing where all was."""
        if self._process is None:
            return ""
        troubles: list[str] = []
        try:
            if self.is_running():
                self.report("finishing the requests in flight")
                drain_s = self.settings.coordinator.drain_s
                models = (*self._compatible, TWIN, COORDINATOR)  # the coordinator answers the others' requests
                asked = partial(open_requests, self.metrics_url)
                troubles.append(drain(self.http_url, models, drain_s, self.is_running, asked))
                self.report("stopping the server")
                self._process.send_signal(signal.SIGINT)
                self._process.wait(2 * EXIT_S)
        except subprocess.TimeoutExpired:
            self.report("the server does not end by itself, killing it")
            troubles.append(f"tritonserver did not end within {2 * EXIT_S} s and was killed")
        finally:
            status = self._process.poll()
            self.kill()
        if status and (left := server_log.never_unloaded(self.log)):
            troubles.append(f"tritonserver ended with status {status}, {', '.join(left)} still loaded")
        elif status:
            troubles.append(f"tritonserver ended with status {status}")
        return "; ".join(filter(None, troubles))

    def kill(self) -> None:
        """End the server and its models at once, and remove what they leave behind."""
        try:
            if self._process is not None:
                group = self._process.pid
                with suppress(ProcessLookupError):  # all of them may have ended
                    os.killpg(group, signal.SIGKILL)
                self._process.wait()
                wait_for_group(group)
        finally:  # a second Ctrl-C while waiting, too
            if self._claim is not None:
                self._claim.release()
            self._process = self._claim = None

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int = LOG_TAIL) -> str:
        return server_log.tail(self.log, lines)

    def command(self) -> list[str]:
        """The words that start tritonserver."""
        preloaded = [*self._engines, TWIN, *(name for name in self._compatible if name != ENSEMBLE)]
        return [
            str(self._install.binary),
            f"--model-repository={self.repository}",
            f"--backend-directory={self._install.backends(self.settings.cache_dir)}",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in preloaded),
            f"--http-address={self.host}",
            f"--http-port={self.ports['http']}",
            f"--grpc-address={self.host}",
            f"--grpc-port={self.ports['grpc']}",
            f"--metrics-address={self.host}",
            f"--metrics-port={self.ports['metrics']}",
            f"--exit-timeout-secs={EXIT_S}",
            f"--backend-config=python,shm-region-prefix-name={self.shm_prefix}",
        ]

    def _wait_until_live(self) -> None:
        self.report(f"loading {', '.join(self._engines)}")
        with httpx.Client(base_url=f"http://{self.http_url}", timeout=2.0) as client:
            while True:
                self._check_running()
                try:
                    if client.get("/v2/health/ready").status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass  # it does not listen before its models are loaded
                time.sleep(POLL_S)

    def load_coordinator(self) -> None:
        """The one load call that returns when the start-up checks and the cost table are done.

        Not at the server's start: models can call each other only once it serves. An ensemble takes its step along, and
        would load it anew if it came afterwards.
        """
        model = ENSEMBLE if ENSEMBLE in self._compatible else COORDINATOR
        outcome: list[httpx.Response | httpx.TransportError] = []

        def call() -> None:
            try:
                url = f"http://{self.http_url}/v2/repository/models/{model}/load"
                outcome.append(httpx.post(url, timeout=None))
            except httpx.TransportError as error:
                outcome.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        while thread.is_alive():
            self.report(self._progress())
            self._check_running()
            thread.join(POLL_S)
        (answer,) = outcome
        if isinstance(answer, httpx.TransportError):
            self._fail(f"the server went away; the coordinator's last words: {self._progress()}")
        elif answer.status_code != httpx.codes.OK:
            self._fail(answer.json()["error"])

    def _progress(self) -> str:
        """The coordinator's last words in the log."""
        return server_log.last_words(self.log) or f"loading {COORDINATOR}"

    def _check_running(self) -> None:
        if not self.is_running():
            assert self._process is not None
            ended = f"tritonserver ended with status {self._process.returncode}"
            self._fail(f"{server_log.load_failure(self.log) or self._progress()} ({ended})")

    def _fail(self, reason: str) -> None:
        raise ServerStartError(f"{reason}\n--- end of {self.log}\n{self.log_tail()}")


def wait_for_group(group: int) -> None:
    """Until no process of a group that was killed lives, but not for ever."""
    deadline = time.monotonic() + EXIT_S
    while time.monotonic() < deadline and _lives(group):
        time.sleep(POLL_S)


def _lives(group: int) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            if os.getpgid(int(process.name)) == group and leftovers.lives(process):
                return True
    return False


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def overridden(variables: Mapping[str, str]) -> Iterator[None]:
    """os.environ with these variables for a while."""
    before = os.environ.copy()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
