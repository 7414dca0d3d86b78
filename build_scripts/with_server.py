"""Run a client program against a server: the one that runs, or else one of its own that it ends afterwards.

python -m build_scripts.with_server clients.demo --rounds 1
"""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import httpx
import typer
from rich.console import Console

from build_scripts.server import COORDINATOR, HOST, TROUBLE, TritonServer


def is_serving(http_url: str) -> bool:
    """Whether the coordinator is ready there."""
    try:
        answer = httpx.get(f"http://{http_url}/v2/models/{COORDINATOR}/ready", timeout=2.0)
    except httpx.TransportError:
        return False
    return answer.status_code == httpx.codes.OK


def run(program: str, arguments: list[str], grpc_url: str) -> int:
    """Run a module with --url. Returns its exit status."""
    return subprocess.run([sys.executable, "-m", program, "--url", grpc_url, *arguments], check=False).returncode


def main(
    context: typer.Context,
    program: Annotated[str, typer.Argument(help="Module of the client program; what follows are its arguments.")],
    http_port: Annotated[int, typer.Option(help="HTTP port where a server may run.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port where a server may run.")] = 8001,
) -> None:
    """Run PROGRAM against the server on this machine; start one for it where none runs."""
    console = Console(stderr=True)
    if is_serving(f"{HOST}:{http_port}"):
        raise typer.Exit(run(program, context.args, f"{HOST}:{grpc_port}"))
    server = None
    try:
        with console.status("starting a server") as status:
            server = TritonServer(report=status.update)
            server.start()
        code = run(program, context.args, server.grpc_url)
    except TROUBLE as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        code = 1
    except KeyboardInterrupt:
        code = 130
    finally:
        if server:
            with console.status("stopping the server") as status:
                server.report = status.update
                trouble = server.stop()
            if trouble:
                console.print(f"stopped, but not in order: {trouble} (log: {server.log})", markup=False)
    raise typer.Exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
