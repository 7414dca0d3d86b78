"""Raise at one call of our code, the n-th that a thread makes."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager

from python_backend.settings import ROOT

CODE = str(ROOT / "python_backend")


class InjectedError(Exception):
    """Nothing in the code knows it."""


class Fault:
    """Raises at the n-th call of a function of python_backend; `at` is then that function."""

    def __init__(self, n, threads=None, beyond=()):
        """threads: names of those that count; None = all. beyond: functions that do not count."""
        self.left, self.threads, self.beyond, self.at = n, threads, frozenset(beyond), ""
        self.passed = []  # functions called before

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if event != "call" or self.at or not code.co_filename.startswith(CODE) or code.co_qualname in self.beyond:
            return
        if self.threads is not None and threading.current_thread().name not in self.threads:
            return
        self.left -= 1
        self.passed.append(code.co_qualname)
        if self.left == 0:
            self.at = code.co_qualname
            raise InjectedError(f"injected at {self.at}")

    @contextmanager
    def here(self):
        """In this thread."""
        sys.setprofile(self)
        try:
            yield self
        finally:
            sys.setprofile(None)

    @contextmanager
    def in_new_threads(self):
        """In every thread that is started meanwhile."""
        threading.setprofile(self)
        try:
            yield self
        finally:
            threading.setprofile(None)
