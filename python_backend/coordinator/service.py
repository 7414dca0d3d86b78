"""The coordinator as its host sees it: start, submit, cancel, shut down."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from python_backend.budget.policies import POLICIES, build_policy
from python_backend.coordinator import handshake, request
from python_backend.coordinator.draft_calls import DraftCalls
from python_backend.coordinator.emit import strings
from python_backend.coordinator.handshake import StartupError
from python_backend.coordinator.intake import Intake
from python_backend.coordinator.loop import DecodeLoop
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.reply import Replies, Responder, internal, unavailable
from python_backend.coordinator.report import StepLog
from python_backend.coordinator.request import RequestError, invalid
from python_backend.coordinator.router import Router
from python_backend.coordinator.scheduler import Scheduler
from python_backend.coordinator.start_costs import StartCosts, start_costs
from python_backend.coordinator.text import TextCodec
from python_backend.coordinator.worker import Worker
from python_backend.engine import DrafterEngine, TargetEngine
from python_backend.protocol import Tensors
from python_backend.settings import Settings

log = logging.getLogger(__name__)

SET_POLICY = "set_policy"  # control request: parameters operation and policy
IDLE_WAIT_S = 0.02  # how soon an idle loop notices a client that left the queue
STOP_WAIT_S = 2.0  # longer than a step
STOPPING = "server is shutting down"


class Service:
    """Owns the loop's thread. `submit` and `cancel` may be called from any thread."""

    def __init__(
        self,
        settings: Settings,
        target: TargetEngine,
        drafters: dict[str, DrafterEngine],
        codec: TextCodec,
        metrics: Metrics,
    ) -> None:
        self._settings, self._target, self._drafters = settings, target, drafters
        self._intake, self.metrics = Intake(settings, codec), metrics
        wanted = settings.coordinator
        self._scheduler = Scheduler(wanted.max_sequences, wanted.max_queue, wanted.prefill_rows)
        self._wake = threading.Event()
        self._started = threading.Event()
        self._startup_error: StartupError | None = None
        self._stopped = False
        self._died = ""  # why the loop's thread is gone
        self._replies = Replies(self.metrics)
        self._costs: StartCosts | None = None
        self._loop: DecodeLoop | None = None
        self._worker = Worker("decode-loop", self._run, self._loop_died)

    def start(self) -> None:
        """Check the engines, measure the cost table, then serve; all on the loop's own thread."""
        self._worker.start()

    def wait_started(self, timeout_s: float | None = None) -> None:
        """Block until requests are served. Raises StartupError with the reason they never will be."""
        if not self._started.wait(timeout_s):
            raise StartupError(f"start-up is not done after {timeout_s} s")
        if self._startup_error:
            raise self._startup_error

    def is_serving(self) -> bool:
        """Whether a request that comes now would be served."""
        return self._started.is_set() and not (self._startup_error or self._died or self._stopped)

    def note_death(self, reason: str) -> None:
        """A thread of this process died: say so where operators look."""
        log.error("%s", reason)
        self.metrics.add("angelspec_thread_deaths_total")

    def submit(
        self,
        tensors: Tensors,
        parameters: dict[str, Any],
        responder: Responder,
        request_id: str,
        timeout_s: float = 0.0,
    ) -> None:
        """Queue a request; every outcome goes through the responder. timeout_s 0 = the settings' deadline."""
        with self._replies.take(responder) as reply:
            if parameters.get("operation") == SET_POLICY:
                self.set_policy(str(parameters.get("policy")))
                reply.send({"text_output": strings(str(parameters["policy"]))}, final=True)
                return
            fields = request.parse(tensors, parameters)
            if fields.stop:
                self.cancel(request_id)
                raise RequestError("stopped on request", "CANCELLED")
            self._check_serving()
            sequence = self._intake.sequence(fields, reply, request_id, timeout_s)
            reply.deadline = sequence.deadline
            self._scheduler.submit(sequence)
            self.metrics.add("angelspec_requests_total")
        self._wake.set()  # also where it failed after it was queued

    def tick(self) -> None:
        """To be called now and then, from any thread but the loop's: an engine may hold that up."""
        self._replies.fail_late(time.monotonic())

    def cancel(self, request_id: str) -> None:
        """Stop the requests of this id within a step; unknown ids are no error."""
        for sequence in self._scheduler.find(request_id) if request_id else ():
            sequence.told_to_stop = True
        self._wake.set()

    def set_policy(self, name: str) -> None:
        """Change the budget policy between two steps. Raises RequestError where that is not allowed or unknown."""
        if not self._settings.coordinator.allow_control:
            raise invalid("control requests are refused: set coordinator.allow_control for a benchmark server")
        if name not in POLICIES:
            raise invalid(f"policy is '{name}': expected one of {', '.join(POLICIES)}")
        self.wait_started()
        assert self._loop is not None
        costs = self._costs.costs if self._costs else None
        self._loop.policy = build_policy(name, self._settings.budget, costs)

    def shutdown(self) -> None:
        """Refuse new requests, fail those that still run, then stop the thread. An engine that never answers keeps
        the thread, which ends with its process."""
        self._stopped = True
        self._wake.set()
        self._worker.join(STOP_WAIT_S)
        self._replies.fail_all(unavailable(STOPPING))

    def _busy(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    def _run(self) -> None:
        try:
            self._loop = self._prepare()
        except Exception as error:
            log.exception("start-up failed")
            self._startup_error = (
                error if isinstance(error, StartupError) else StartupError(f"start-up failed: {error}")
            )
            self._refuse_all(unavailable(f"not serving: {self._startup_error}"))
            return
        finally:
            self._started.set()
        self.metrics.set("angelspec_ready", 1)
        while True:
            self._wake.clear()  # before looking: what comes after it is either seen below or wakes the wait
            if self._stopped:
                break
            try:
                if not self._loop.step():
                    self._wake.wait(IDLE_WAIT_S if self._busy() else None)
            except Exception as error:  # a bug of the loop itself: its requests fail, the next ones may not
                log.exception("decode step failed")
                self._loop.send()
                self._refuse_all(internal(f"decode step failed: {type(error).__name__}: {error}"))
        self._loop.send()
        self._refuse_all(unavailable(STOPPING))
        if self._costs:
            self._costs.save()

    def _loop_died(self, reason: str) -> None:
        """Nobody decodes any more: nobody waits for it either."""
        self._died = reason
        self.metrics.set("angelspec_ready", 0)
        self.note_death(reason)
        self._replies.fail_all(unavailable(f"not serving: {reason}"))

    def _prepare(self) -> DecodeLoop:
        target = self._target.describe()
        drafters = {name: drafter.describe() for name, drafter in self._drafters.items()}
        handshake.check(self._settings, target, drafters)
        self._intake.vocabulary_size = target.vocabulary_size
        self._costs = start_costs(self._settings, self._target, self._drafters, target, drafters)
        costs = self._costs.costs if self._costs else None
        name = self._settings.budget.policy if self._settings.coordinator.depth else "off"  # nothing to keep
        policy = build_policy(name, self._settings.budget, costs)
        return DecodeLoop(
            self._target,
            target,
            DraftCalls(self._drafters, drafters, target, costs, self.metrics),
            Router(self._settings, target),
            self._scheduler,
            policy,
            self.metrics,
            StepLog(self._settings.coordinator.step_log),
            costs,
        )

    def _check_serving(self) -> None:
        if self._stopped:
            raise unavailable(STOPPING)
        if reason := self._startup_error or self._died:
            raise unavailable(f"not serving: {reason}")

    def _refuse_all(self, error: RequestError) -> None:
        """Fail every request, wherever it is, and free the slots."""
        self._replies.fail_all(error)
        self._scheduler.clear()
