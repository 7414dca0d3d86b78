"""What `make serve` runs: the server in the foreground."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from build_scripts.readiness import Watch, process_of
from build_scripts.server import COORDINATOR, HOST, POLL_S, REPOSITORY, TROUBLE, Report, TritonServer

WATCH_S = 2.0  # how often the server is asked whether it still serves


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8002,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 = all.")] = HOST,
    repository: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Triton model repository.")
    ] = REPOSITORY,
) -> None:
    """Serve until Ctrl-C, which lets running requests finish."""
    foreground(
        lambda report: TritonServer(
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            host=host,
            repository=repository,
            report=report,
        )
    )


def foreground(make: Callable[[Report], TritonServer]) -> None:
    """Start a server and serve until a signal. Raises typer.Exit where it does not come up, or ends by itself."""
    console = Console()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    status = console.status("checking")
    try:
        server = make(status.update)
        with status:
            server.start()
    except TROUBLE as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        console.print("stopped before it was ready")
        raise typer.Exit(130) from None
    ended = _serve(server, console)
    if ended:
        console.print(f"error: {ended}\n{server.log_tail()}", style="red", markup=False, highlight=False)
        raise typer.Exit(1)


def _serve(server: TritonServer, console: Console) -> str:
    """Until a signal. Returns why it ended by itself, or nothing."""
    try:
        console.print(
            f"[green]ready[/]  gRPC {server.grpc_url}  HTTP {server.http_url}  metrics {server.metrics_url}  "
            f"[dim](log: {server.log}, Ctrl-C ends)[/]",
            soft_wrap=True,
            highlight=False,
        )
        watch = Watch(
            server.http_url, server.metrics_url, server.log, lambda: process_of(COORDINATOR, server.shm_prefix)
        )
        next_look = time.monotonic() + WATCH_S
        while server.is_running():
            time.sleep(POLL_S)
            if time.monotonic() >= next_look:
                if change := watch.look():
                    _say(console, change)
                next_look = time.monotonic() + WATCH_S
        return "tritonserver ended by itself"
    except KeyboardInterrupt:
        _stop(server, console)
        return ""
    finally:
        server.kill()


def _stop(server: TritonServer, console: Console) -> None:
    """In order, or at a second signal at once; either is said."""
    try:
        with console.status("stopping (once more: kill)") as status:
            server.report = status.update
            trouble = server.stop()
    except KeyboardInterrupt:
        trouble = "a second signal killed what still ran"
    if trouble:
        _say(console, f"stopped, but not in order: {trouble} (log: {server.log})")
    else:
        console.print("stopped")


def _say(console: Console, text: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')} {text}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
