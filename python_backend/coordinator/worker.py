"""Threads with an owner: whoever starts one is told when it dies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

OnDeath = Callable[[str], None]


class Worker:
    """A daemon thread whose `run` is to return only when it was asked to."""

    def __init__(self, name: str, run: Callable[[], None], on_death: OnDeath) -> None:
        """on_death: called on the dying thread with the reason, where `run` raised."""
        self.name, self._work, self._on_death = name, run, on_death
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Worker:
        self._thread.start()
        return self

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # SystemExit too: no thread ends unnoticed
            log.exception("thread '%s' died", self.name)
            self._on_death(f"thread '{self.name}' died of {type(error).__name__}: {error}")
