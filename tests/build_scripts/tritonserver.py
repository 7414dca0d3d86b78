"""A stand-in for tritonserver: its command line, the answers that the launcher waits for, a region, and a claim held by
a child. What it is told to do wrong comes from the file in $STAND_IN."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

OPTIONS = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
FAULTS = Path(os.environ["STAND_IN"])
loaded: list[str] = ["angelspec_infer"]


def faulty(name: str) -> bool:
    return FAULTS.is_file() and name in FAULTS.read_text().split()


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ready = 400 if self.path.endswith("/ready") and faulty("not-ready") else 200
        idle = "angelspec_open_requests 0\n" if faulty("idle") else ""
        self._answer(ready, f"angelspec_ready {0 if faulty('metric-0') else 1}\n{idle}")

    def do_POST(self) -> None:
        *_, model, action = self.path.split("/")
        if action == "load":
            for name in ("angelspec", model) if model == "ensemble" else (model,):  # an ensemble takes its step along
                loaded.append(name)
                print(
                    f"""I1201 02:00:00.000001 7 model_lifecycle.cc:839] "successfully loaded '{name}'\"""", flush=True
                )
        if action == "unload" and model in loaded and not faulty(f"keep-{model}"):
            loaded.remove(model)
            print(f"""I1201 02:00:00.000001 7 model_lifecycle.cc:624] "successfully unloaded '{model}'\"""", flush=True)
        self._answer(200, json.dumps([{"name": name, "state": "READY"} for name in loaded]))

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


def end(number: int, frame: object) -> None:
    os._exit(1 if loaded else 0)


prefix = OPTIONS["backend-config"].rpartition("=")[2]
(Path("/dev/shm") / f"{prefix}region").write_bytes(b"x" * 64)
child = subprocess.Popen(["sleep", "300"], close_fds=False)
if not faulty("deaf"):
    signal.signal(signal.SIGINT, end)
else:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
for port in ("http-port", "metrics-port"):
    server = ThreadingHTTPServer(("127.0.0.1", int(OPTIONS[port])), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
signal.pause()
while True:
    signal.pause()
