"""Command-line options that several clients share, and how they report trouble."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from clients.transport import TIMEOUT_S
from clients.wire import GRPC_URL, ServerError


class Workload(StrEnum):
    """Which drafter serves the request; auto lets the server decide from the prompt."""

    AUTO = "auto"
    CHAT = "chat"
    CODE = "code"
    MATH = "math"


GrpcUrl = Annotated[str, typer.Option("--url", help="gRPC address of the server, HOST:PORT.")]
TimeoutS = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds until an answer must be complete.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")]
Temperature = Annotated[float | None, typer.Option(min=0.0, help="0 takes the most likely token.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Same seed, same answer.")]
WorkloadChoice = Annotated[Workload | None, typer.Option(help="Pick the drafter yourself.")]
NumDraftTokens = Annotated[int | None, typer.Option(min=0, help="Drafts per step; 0 = plain decoding.")]

DEFAULT_URL, DEFAULT_TIMEOUT_S = GRPC_URL, TIMEOUT_S


def run(main: Callable[..., None]) -> None:
    """Run a program; its --help in plain text, where no option's name is cut to fit a column."""
    program = typer.Typer(add_completion=False, rich_markup_mode=None)
    program.command()(main)
    program()


@contextmanager
def trouble_reported() -> Iterator[None]:
    """End the program with one line on stderr where the server or an input fails it."""
    try:
        yield
    except (ServerError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
