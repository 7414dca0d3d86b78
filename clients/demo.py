"""What `make demo` shows: three prompts answered live, then plain decoding against speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from clients import options, transport, wire
from clients.chat import summary_line
from clients.options import trouble_reported
from clients.wire import Answer

PROMPTS = {
    "chat": "What makes a good neighbour? Answer in a few sentences.",
    "code": """Rewrite this class with docstrings, and show the whole class:

class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()""",
    "math": "A train travels 180 km in 3 hours. How far does it travel in 5 hours at that speed? Explain each step.",
}
PLAIN, SPECULATIVE = "plain", "speculative"
MODES: dict[str, dict[str, Any]] = {PLAIN: {"num_draft_tokens": 0}, SPECULATIVE: {}}
WARM_UP_TOKENS = 8

HONEST_LINE = (
    "Same target model, greedy, one request at a time, the two modes in turn on this machine. It shows that the "
    "tokens do not change, and the gain for these prompts on this hardware. It is no benchmark: the code prompt asks "
    "for given code again, which suits a drafter that copies, the others do not; other drafters, a larger target or "
    "a busy server give other numbers (`make load-test`)."
)


@dataclass
class Comparison:
    """The answers to one prompt, by mode."""

    workload: str
    answers: dict[str, list[Answer]] = field(default_factory=lambda: {mode: [] for mode in MODES})

    def tokens_per_s(self, mode: str) -> float:
        answers = self.answers[mode]
        return sum(len(answer.token_ids) for answer in answers) / sum(answer.total_s for answer in answers)

    @property
    def speculation(self) -> wire.Speculation:
        return wire.total(answer.summary.speculation for answer in self.answers[SPECULATIVE] if answer.summary)

    @property
    def first_difference(self) -> int | None:
        """The first output token at which any two of the answers differ; None where all are the same."""
        runs = [answer.token_ids for answers in self.answers.values() for answer in answers]
        if all(run == runs[0] for run in runs):
            return None
        return next(
            (i for i, tokens in enumerate(zip(*runs, strict=False)) if len(set(tokens)) > 1), min(map(len, runs))
        )


def ask(url: str, workload: str, prompt: str, max_tokens: int, mode: str) -> transport.Chunks:
    settings = {
        "messages": wire.chat_messages(("user", prompt)),
        "workload": workload,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        **MODES[mode],
    }
    return transport.stream_grpc(settings, url)


def run(url: str, workload: str, prompt: str, max_tokens: int, mode: str) -> Answer:
    answer = Answer()
    for chunk in ask(url, workload, prompt, max_tokens, mode):
        answer.add(chunk)
    return answer


def show(console: Console, url: str, workload: str, prompt: str, max_tokens: int) -> None:
    """Stream one answer to the terminal under its prompt."""
    console.print(Panel(Text(prompt), title=workload, title_align="left", border_style="cyan"))
    answer = Answer()
    for chunk in ask(url, workload, prompt, max_tokens, SPECULATIVE):
        answer.add(chunk)
        console.out(chunk.text, end="", highlight=False)
    console.print(f"\n[dim]{summary_line(answer)}[/]\n", highlight=False)


def compare(console: Console, url: str, rounds: int, max_tokens: int) -> list[Comparison]:
    """Run every prompt in both modes, in turn; the mode that goes first changes, so that drift hits both."""
    comparisons = [Comparison(workload) for workload in PROMPTS]
    with progress(console, total=len(MODES) + rounds * len(PROMPTS) * len(MODES)) as advance:
        for mode in MODES:
            advance(f"warm-up, {mode}")
            run(url, "chat", PROMPTS["chat"], WARM_UP_TOKENS, mode)
        for turn in range(rounds):
            for comparison in comparisons:
                for mode in list(MODES) if turn % 2 == 0 else reversed(MODES):
                    advance(f"{comparison.workload}, {mode}")
                    prompt = PROMPTS[comparison.workload]
                    comparison.answers[mode].append(run(url, comparison.workload, prompt, max_tokens, mode))
    return comparisons


@contextmanager
def progress(console: Console, total: int) -> Iterator[Any]:
    """A bar; the function it gives names the next run and counts the one before as done."""
    columns = (TextColumn("[dim]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, completed=-1)
        yield lambda name: bar.update(task, description=name, advance=1)


def table_of(comparisons: list[Comparison]) -> Table:
    table = Table(title="plain against speculative decoding", title_justify="left")
    table.add_column("prompt")
    for heading in ("plain\ntokens/s", "speculative\ntokens/s", "speed-up", "mean acceptance\nlength", "same\ntokens"):
        table.add_column(heading, justify="right")
    for comparison in comparisons:
        plain, speculative = comparison.tokens_per_s(PLAIN), comparison.tokens_per_s(SPECULATIVE)
        difference = comparison.first_difference
        table.add_row(
            comparison.workload,
            f"{plain:.1f}",
            f"{speculative:.1f}",
            f"{speculative / plain:.2f}x",
            f"{comparison.speculation.mean_acceptance_length:.2f}",
            "[green]yes[/]" if difference is None else f"[red]no, from {difference}[/]",
        )
    return table


def main(
    url: options.GrpcUrl = options.DEFAULT_URL,
    max_tokens: Annotated[int, typer.Option(min=8, help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="How often each prompt runs in each mode.")] = 2,
) -> None:
    """Show speculative decoding at work on a running server."""
    console = Console()
    with trouble_reported():
        for workload, prompt in PROMPTS.items():
            show(console, url, workload, prompt, max_tokens)
        comparisons = compare(console, url, rounds, max_tokens)
    console.print(table_of(comparisons))
    console.print(f"[dim]{HONEST_LINE}[/]", highlight=False)
    if any(comparison.first_difference is not None for comparison in comparisons):
        raise typer.Exit(1)


if __name__ == "__main__":
    options.run(main)
