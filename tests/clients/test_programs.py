"""The programs that a user types, against an endpoint that answers by a script."""

import io
import json
import threading
from contextlib import contextmanager

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from clients import chat, demo, generate, transport
from clients.wire import Answer, Chunk, Summary
from tests.clients.fake_server import LAST, SPECULATION, failure, ids, response, serving, text


def hello(request):
    yield response(text_output=text("Hel"), output_ids=ids(1), finish_reason=text(""))
    yield response(final=True, text_output=text("lo"), output_ids=ids(2, 3), **LAST)


def inputs_of(request):
    return {tensor.name: raw for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)}


def invoke(main, *arguments, stdin=None):
    program = typer.Typer()
    program.command()(main)
    return CliRunner().invoke(program, list(arguments), input=stdin)


def test_generate_prints_the_text_and_nothing_else():
    with serving(hello) as (url, _):
        result = invoke(generate.main, "Hi", "--url", url)
    assert (result.exit_code, result.stdout) == (0, "Hello\n")


def test_generate_sends_what_was_given_and_only_that():
    with serving(hello) as (url, servicer):
        result = invoke(
            generate.main, "Hi", "--url", url, "--max-tokens", "3", "--stop-words", "a", "--stop-words", "b"
        )
    assert result.exit_code == 0
    sent = inputs_of(servicer.requests[0])
    assert sent.keys() == {"messages", "max_tokens", "stop_words", "stream"}
    assert json.loads(sent["messages"][4:]) == [{"role": "user", "content": "Hi"}]
    assert sent["stop_words"] == b"\x01\x00\x00\x00a\x01\x00\x00\x00b"


def test_generate_reads_the_prompt_from_stdin_without_its_last_newline():
    with serving(hello) as (url, servicer):
        result = invoke(generate.main, "-", "--as", "text", "--url", url, stdin="two\nlines\n")
    assert result.exit_code == 0
    assert inputs_of(servicer.requests[0])["text_input"][4:] == b"two\nlines"


def test_generate_takes_token_ids_and_names_what_is_none():
    with serving(hello) as (url, servicer):
        assert invoke(generate.main, "1, 2 3", "--as", "ids", "--url", url).exit_code == 0
        result = invoke(generate.main, "1 two", "--as", "ids", "--url", url)
    assert inputs_of(servicer.requests[0])["input_ids"] == bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])
    assert result.exit_code == 1
    assert "'two' is not a token id" in result.stderr


def test_generate_gives_scripts_one_json_object():
    with serving(hello) as (url, _):
        result = invoke(generate.main, "Hi", "--url", url, "--json")
    answer = json.loads(result.stdout)
    assert answer["text"] == "Hello"
    assert answer["token_ids"] == [1, 2, 3]
    assert (answer["finish_reason"], answer["num_input_tokens"], answer["num_output_tokens"]) == ("stop", 7, 3)
    assert answer["speculation"]["mean_acceptance_length"] == 1.5
    assert answer["speculation"]["drafter"] == "drafter_prompt_lookup"


def test_generate_ends_with_the_servers_message_on_stderr():
    with serving(lambda request: iter([failure("top_p is 2: limit 1")])) as (url, _):
        result = invoke(generate.main, "Hi", "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: top_p is 2: limit 1\n"


@contextmanager
def chatting(script):
    """(chat, screen, servicer) connected to an endpoint."""
    screen = io.StringIO()
    with serving(script) as (url, servicer):

        def ask(settings):
            return transport.stream_grpc(settings, url)

        yield chat.Chat(ask, Console(file=screen, width=120), settings={"max_tokens": 9}), screen, servicer


def turns_of(request):
    return [(turn["role"], turn["content"]) for turn in json.loads(inputs_of(request)["messages"][4:])]


def test_a_chat_sends_the_whole_conversation():
    with chatting(hello) as (talk, screen, servicer):
        talk.handle("Hi")
        talk.handle("And you?")
    assert turns_of(servicer.requests[1]) == [("user", "Hi"), ("assistant", "Hello"), ("user", "And you?")]
    assert "3 tokens" in screen.getvalue()
    assert "mean acceptance length 1.50" in screen.getvalue()


def test_reset_forgets_the_conversation_but_not_the_system_prompt():
    with chatting(hello) as (talk, _, servicer):
        talk.system = "Be brief."
        talk.handle("Hi")
        talk.handle("/reset")
        talk.handle("Again")
    assert turns_of(servicer.requests[1]) == [("system", "Be brief."), ("user", "Again")]


def test_stats_sum_up_the_answers():
    with chatting(hello) as (talk, screen, _):
        talk.handle("Hi")
        talk.handle("Hi")
        talk.handle("/stats")
    assert "28, 8, 2" in screen.getvalue()  # twice 14 drafted, 4 kept, 1 accepted


def test_quit_ends_the_chat_and_an_unknown_command_does_not():
    with chatting(hello) as (talk, screen, servicer):
        assert talk.handle("/help")
        assert not talk.handle("/quit")
    assert "unknown command /help" in screen.getvalue()
    assert servicer.requests == []


def test_a_refused_turn_is_taken_back_and_the_chat_goes_on():
    with chatting(lambda request: iter([failure("prompt has 5000 tokens, limit 2048")])) as (talk, screen, _):
        assert talk.handle("Hi")
        assert talk.turns == []
    assert "prompt has 5000 tokens" in screen.getvalue()


def test_ctrl_c_stops_the_answer_keeps_what_came_and_cancels_on_the_server():
    released = threading.Event()

    def one_and_wait(request):
        yield response(text_output=text("Hel"), output_ids=ids(1), finish_reason=text(""))
        released.wait(timeout=10)

    with chatting(one_and_wait) as (talk, screen, servicer):
        ask = talk.ask

        def interrupted(settings):
            chunks = ask(settings)
            try:
                yield next(chunks)
                raise KeyboardInterrupt
            finally:
                chunks.close()

        talk.ask = interrupted
        assert talk.handle("Hi")
        assert servicer.client_gone.wait(timeout=5)
        released.set()
    assert talk.turns == [("user", "Hi"), ("assistant", "Hel")]
    assert "stopped" in screen.getvalue()


def test_a_piped_chat_answers_each_line():
    with serving(hello) as (url, servicer):
        result = invoke(chat.main, "--url", url, stdin="Hi\n/stats\nBye\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Hello") == 2
    assert len(servicer.requests) == 2


def answer_of(tokens, seconds=1.0, passes=1, accepted=0):
    speculation = demo.wire.Speculation(num_drafts=passes, num_accepted_tokens=accepted)
    answer = Answer()
    answer.add(Chunk("x", tuple(tokens), summary=Summary("stop", 1, len(tokens), speculation)))
    answer.total_s = seconds
    return answer


def test_the_demo_compares_tokens_times_and_acceptance():
    comparison = demo.Comparison("code")
    comparison.answers["plain"] = [answer_of([1, 2, 3, 4], seconds=2.0), answer_of([1, 2, 3, 4], seconds=2.0)]
    comparison.answers["speculative"] = [answer_of([1, 2, 3, 4], passes=2, accepted=2) for _ in range(2)]
    assert comparison.tokens_per_s("plain") == 2.0
    assert comparison.tokens_per_s("speculative") == 4.0
    assert comparison.speculation.mean_acceptance_length == 2.0
    assert comparison.first_difference is None


@pytest.mark.parametrize(("other", "where"), [([1, 2, 9, 4], 2), ([1, 2, 3], 3), ([9, 2, 3, 4], 0)])
def test_the_demo_says_from_which_token_answers_differ(other, where):
    comparison = demo.Comparison("code")
    comparison.answers["plain"] = [answer_of([1, 2, 3, 4])]
    comparison.answers["speculative"] = [answer_of(other)]
    assert comparison.first_difference == where


def test_the_demo_ends_well_where_the_tokens_are_the_same():
    with serving(hello) as (url, servicer):
        result = invoke(demo.main, "--url", url, "--rounds", "1", "--max-tokens", "8")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("yes") == 3
    plain = [request for request in servicer.requests if "num_draft_tokens" in inputs_of(request)]
    assert len(servicer.requests) == 3 + 2 + 6  # shown, warm-up, compared
    assert len(plain) == 1 + 3


def test_the_demo_fails_where_they_are_not():
    def differing(request):
        token = 1 if "num_draft_tokens" in inputs_of(request) else 2
        yield response(final=True, text_output=text("x"), output_ids=ids(token), **LAST)

    with serving(differing) as (url, _):
        result = invoke(demo.main, "--url", url, "--rounds", "1", "--max-tokens", "8")
    assert result.exit_code == 1
    assert "no, from 0" in result.stdout


def typed(monkeypatch, *keys):
    """A terminal at which these lines are typed; None is Ctrl-C."""
    left = list(keys)

    def read(prompt):
        if not left:
            raise EOFError
        if (key := left.pop(0)) is None:
            raise KeyboardInterrupt
        return key

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    return left


def test_ctrl_c_at_the_prompt_asks_for_a_second_press(monkeypatch):
    screen = io.StringIO()
    left = typed(monkeypatch, "one", None, "two", None, None, "never read")
    assert list(chat.lines(Console(file=screen))) == ["one", "two"]
    assert left == ["never read"]
    assert screen.getvalue().count("once more to leave") == 2


def test_ctrl_c_at_the_prompt_keeps_the_conversation(monkeypatch):
    typed(monkeypatch, "Hi", None, "And?")
    with serving(hello) as (url, servicer):
        chat.main(url=url)
    turns = json.loads(inputs_of(servicer.requests[1])["messages"][4:])
    assert [turn["content"] for turn in turns] == ["Hi", "Hello", "And?"]


def test_the_chat_says_at_its_end_that_speculation_costs_time(monkeypatch):
    losing = SPECULATION.replace("{", '{"gain": 0.8, ', 1)

    def script(request):
        yield response(final=True, text_output=text("x"), output_ids=ids(1), **LAST | {"speculation": text(losing)})

    with serving(script) as (url, _):
        told = invoke(chat.main, "--url", url, stdin="Hi\n").stdout
    assert "speculation does not pay: by the server's cost table plain decoding is 25% faster" in " ".join(told.split())
    with serving(hello) as (url, _):
        assert "speculation" not in invoke(chat.main, "--url", url, stdin="Hi\n").stdout
