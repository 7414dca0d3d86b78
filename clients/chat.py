"""A chat in the terminal: `python -m clients.chat`. Keeps the conversation; Ctrl-C stops an answer, and
at the prompt has to come twice to end the chat."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from clients import options, transport, verdict, wire
from clients.options import trouble_reported
from clients.transport import Chunks
from clients.wire import Answer, NoServerError, ServerError

with suppress(ImportError):
    import readline  # noqa: F401  line editing and history at the prompt

PROMPT = "you › "
HELP = "[dim]/reset forgets the conversation, /stats shows how drafting goes, /quit leaves; Ctrl-C stops an answer[/]"
ONCE_MORE = "\n[dim]once more to leave; the conversation is kept[/]"

Ask = Callable[[dict[str, Any]], Chunks]


@dataclass
class Chat:
    """A conversation with the server, and what its answers cost."""

    ask: Ask  # settings -> chunks of the answer
    console: Console
    settings: dict[str, Any]
    system: str | None = None
    turns: list[tuple[str, str]] = field(default_factory=list)  # (role, content)
    answers: list[Answer] = field(default_factory=list)

    def handle(self, line: str) -> bool:
        """Act on one line of input; False ends the chat. Raises NoServerError where the server has gone."""
        match line.strip():
            case "":
                pass
            case "/quit":
                return False
            case "/reset":
                self.turns.clear()
                self.console.print("[dim]conversation forgotten[/]")
            case "/stats":
                self.console.print(stats_table(self.answers))
            case command if command.startswith("/") and " " not in command:
                self.console.print(f"unknown command {command}\n{HELP}", highlight=False)
            case message:
                self.reply(message)
        return True

    def reply(self, message: str) -> None:
        """Stream the answer to a user's turn. A turn that fails is taken back, a stopped answer stays as it is."""
        self.turns.append(("user", message))
        answer = Answer()
        note = ""
        try:
            self.stream(answer)
        except KeyboardInterrupt:
            note = "stopped; "
        except NoServerError:
            raise
        except ServerError as error:
            self.turns.pop()
            self.console.print(f"[red]error:[/] {error}\n[dim]the turn was taken back; /reset starts afresh[/]")
            return
        if not answer.text.endswith("\n"):
            self.console.print()
        self.console.print(f"[dim]{note}{summary_line(answer)}[/]", highlight=False)
        self.turns.append(("assistant", answer.text))
        self.answers.append(answer)

    def stream(self, answer: Answer) -> None:
        opening = [("system", self.system)] if self.system else []
        messages = wire.chat_messages(*opening, *self.turns)
        with closing(self.ask({"messages": messages, **self.settings})) as chunks:  # closing cancels on the server
            for chunk in chunks:
                answer.add(chunk)
                self.console.out(chunk.text, end="", highlight=False)


def summary_line(answer: Answer) -> str:
    at_limit = answer.summary is not None and answer.summary.finish_reason == "length"
    count = len(answer.token_ids)
    tokens = f"{count} token{'' if count == 1 else 's'}"
    parts = [tokens + (" (limit)" if at_limit else ""), f"{answer.tokens_per_s:.1f} tokens/s"]
    if answer.first_token_s is not None:
        parts.append(f"first in {1000 * answer.first_token_s:.0f} ms")
    if answer.summary:
        parts.append(f"mean acceptance length {answer.summary.speculation.mean_acceptance_length:.2f}")
    return ", ".join(parts)


def stats_table(answers: list[Answer]) -> Table:
    """Totals of the chat. Stopped answers count with their tokens and time; drafting comes from complete ones."""
    speculation = drafted(answers)
    tokens = sum(len(answer.token_ids) for answer in answers)
    seconds = sum(answer.total_s for answer in answers)
    table = Table(show_header=False, box=None)
    table.add_row("answers", str(len(answers)))
    table.add_row("tokens", str(tokens))
    table.add_row("tokens/s", f"{tokens / seconds:.1f}" if seconds else "-")
    table.add_row(
        "mean acceptance length", f"{speculation.mean_acceptance_length:.2f}" if speculation.num_drafts else "-"
    )
    table.add_row("drafted, kept after pruning, accepted", drafting(speculation))
    if said := verdict.predicted(speculation):
        table.add_row("does it pay", said)
    return table


def drafted(answers: list[Answer]) -> wire.Speculation:
    return wire.total(answer.summary.speculation for answer in answers if answer.summary)


def drafting(speculation: wire.Speculation) -> str:
    counts = (speculation.num_draft_tokens, speculation.num_kept_tokens, speculation.num_accepted_tokens)
    return ", ".join(str(count) for count in counts)


def lines(console: Console) -> Iterator[str]:
    """The user's lines, from the keyboard or a pipe; ends with the input, Ctrl-D, or Ctrl-C twice at the prompt."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            console.out(PROMPT + line.rstrip("\n"), highlight=False)
            yield line
        return
    warned = False
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            return
        except KeyboardInterrupt:
            if warned:
                return
            warned = True
            console.print(ONCE_MORE)
            continue
        warned = False
        yield line


def main(
    url: options.GrpcUrl = options.DEFAULT_URL,
    timeout: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
    system: Annotated[str | None, typer.Option(help="What the model is told about its role.")] = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    workload: options.WorkloadChoice = None,
    num_draft_tokens: options.NumDraftTokens = None,
) -> None:
    """Chat with the model."""
    given = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "workload": workload,
        "num_draft_tokens": num_draft_tokens,
    }
    console = Console()
    chat = Chat(
        ask=lambda settings: transport.stream_grpc(settings, url, timeout),
        console=console,
        settings={name: value for name, value in given.items() if value is not None},
        system=system,
    )
    with trouble_reported():
        console.print(HELP, highlight=False)
        for line in lines(console):
            if not chat.handle(line):
                break
        if (speculation := drafted(chat.answers)).gain is not None and speculation.gain < 1 - verdict.EVEN:
            console.print(verdict.predicted(speculation), style="dim", highlight=False)


if __name__ == "__main__":
    options.run(main)
