"""One prompt, one answer: `python -m clients.generate "Tell me a joke"`; `-` reads the prompt from stdin."""

from __future__ import annotations

import dataclasses
import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from clients import options, transport, wire
from clients.options import trouble_reported
from clients.transport import Chunks
from clients.wire import Answer


class Protocol(StrEnum):
    """How the request travels."""

    GRPC = "grpc"  # a stream
    HTTP = "http"  # /generate, or /generate_stream with --stream
    INFER = "infer"  # /infer on the model that is not decoupled


class PromptForm(StrEnum):
    """What the prompt is."""

    CHAT = "chat"  # a user's turn, in the model's chat template
    TEXT = "text"  # continued as it is
    MESSAGES = "messages"  # JSON list of {"role", "content"}
    IDS = "ids"  # token ids, separated by spaces or commas


def main(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.")],
    url: Annotated[
        str | None, typer.Option(help=f"HOST:PORT; by default {wire.GRPC_URL} (grpc) or {wire.HTTP_URL}.")
    ] = None,
    protocol: Annotated[Protocol, typer.Option(help="How to reach the server.")] = Protocol.GRPC,
    prompt_form: Annotated[PromptForm, typer.Option("--as", help="What the prompt is.")] = PromptForm.CHAT,
    stream: Annotated[bool, typer.Option(help="Print the answer as it comes (grpc, http).")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
    timeout: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Sample among the k likeliest; 0 = off.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Nucleus sampling; 0 = off.")] = None,
    min_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Least share of the best; 0 = off.")] = None,
    seed: options.Seed = None,
    stop_words: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    bad_words: Annotated[list[str] | None, typer.Option(help="Never write this; may be repeated.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="1 = off.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="0 = off.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="0 = off.")] = None,
    min_tokens: Annotated[int | None, typer.Option(min=0, help="Do not end before so many tokens.")] = None,
    end_id: Annotated[int | None, typer.Option(help="Token id that ends the answer.")] = None,
    return_log_probs: Annotated[bool | None, typer.Option(help="Log probability of each token (in --json).")] = None,
    exclude_input_in_output: Annotated[bool | None, typer.Option(help="Leave the prompt out of the text.")] = None,
    num_draft_tokens: options.NumDraftTokens = None,
    workload: options.WorkloadChoice = None,
    thinking: Annotated[bool | None, typer.Option(help="Thinking mode, where the model has one.")] = None,
) -> None:
    """Send one prompt and print the answer."""
    with trouble_reported():
        settings = prompt_input(sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt, prompt_form)
        settings |= {name: context.params[name] for name in given(context)}
        answer = Answer()
        for chunk in chunks(settings, protocol, url, stream, timeout):
            answer.add(chunk)
            if not as_json:
                print(chunk.text, end="", flush=True)
        if as_json:
            print(json.dumps(as_object(answer)))
        elif not answer.text.endswith("\n"):
            print()


def given(context: typer.Context) -> list[str]:
    """The names of the server's settings that the user gave. `stream` follows from the protocol."""
    return [name for name in wire.INPUTS if name != "stream" and context.params.get(name) not in (None, [], ())]


def prompt_input(prompt: str, form: PromptForm) -> dict[str, Any]:
    """The input that carries the prompt. Raises ValueError for ids that are not numbers."""
    match form:
        case PromptForm.CHAT:
            return {"messages": wire.chat_messages(("user", prompt))}
        case PromptForm.TEXT:
            return {"text_input": prompt}
        case PromptForm.MESSAGES:
            return {"messages": prompt}
        case PromptForm.IDS:
            ids = prompt.replace(",", " ").split()
            if wrong := [token for token in ids if not token.isdecimal()]:
                raise ValueError(f"'{wrong[0]}' is not a token id: --as ids takes whole numbers")
            return {"input_ids": [int(token) for token in ids]}


def chunks(settings: dict[str, Any], protocol: Protocol, url: str | None, stream: bool, timeout_s: float) -> Chunks:
    """The answer by the protocol asked for, in as many pieces as it gives."""
    if protocol is Protocol.GRPC:
        yield from transport.stream_grpc(settings, url or wire.GRPC_URL, timeout_s)
    elif protocol is Protocol.INFER:
        yield transport.infer(settings, url or wire.HTTP_URL, timeout_s)
    elif stream:
        yield from transport.stream_http(settings, url or wire.HTTP_URL, timeout_s)
    else:
        yield transport.generate(settings, url or wire.HTTP_URL, timeout_s)


def as_object(answer: Answer) -> dict[str, Any]:
    """The answer for a script: text, tokens, times in seconds, and the summary's fields beside them."""
    fields: dict[str, Any] = {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "first_token_s": answer.first_token_s,
        "total_s": answer.total_s,
        "tokens_per_s": answer.tokens_per_s,
    }
    if answer.log_probs:
        fields["log_probs"] = answer.log_probs
    if answer.summary:
        fields |= dataclasses.asdict(answer.summary) | {"speculation": answer.summary.speculation.model_dump()}
    return fields


if __name__ == "__main__":
    options.run(main)
