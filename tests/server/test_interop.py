"""Clients that others wrote for TensorRT-LLM on Triton work against ours unchanged: LiteLLM and LlamaIndex."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read when litellm is imported; it would go to the network

import litellm
import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.nvidia_triton import NvidiaTriton
from tritonclient.utils import InferenceServerException

from clients import transport

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:.*`ReadOnly` qualifier.*:UserWarning"),  # of litellm's own types
]

PROMPT = "one two three four one two three four one two three four one two"  # drafts well: few responses, many tokens
TOO_LONG = "word " * 5000


@pytest.fixture(scope="module")
def expected(server):
    """The greedy answer to PROMPT by our own client, by number of tokens."""

    def of(max_tokens):
        settings = {"text_input": PROMPT, "max_tokens": max_tokens, "temperature": 0.0}
        return transport.generate(settings, server.http_url).text

    return of


@pytest.fixture
def complete(server):
    """LiteLLM's completion against /generate, or against /infer of the twin."""

    def call(path="angelspec/generate", prompt=PROMPT, **options):
        return litellm.completion(
            model="triton/angelspec",
            api_base=f"http://{server.http_url}/v2/models/{path}",
            messages=[{"role": "user", "content": prompt}],
            **options,
        )

    return call


def content(completion):
    return completion.choices[0].message.content


PATHS = ("angelspec/generate", "angelspec_infer/infer")


@pytest.mark.parametrize("path", PATHS)
def test_litellm_completes(complete, expected, path):
    assert content(complete(path, max_tokens=16)) == expected(16)


@pytest.mark.parametrize("path", PATHS)
def test_litellm_max_completion_tokens_wins_over_the_max_tokens_it_adds_itself(complete, expected, path):
    assert content(complete(path, max_completion_tokens=6)) == expected(6)


def test_litellm_streams(complete, expected):
    chunks = list(complete(max_tokens=16, stream=True))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == expected(16)
    assert sum(piece != "" for piece in pieces) > 1
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("path", PATHS)
def test_litellm_passes_our_settings(complete, expected, path):
    assert content(complete(path, max_tokens=16, num_draft_tokens=0, top_k=1, workload="math")) == expected(16)


def test_litellm_passes_openai_settings_that_are_allowed(complete, server):
    settings = {"text_input": PROMPT, "max_tokens": 16, "temperature": 1.0, "seed": 5}
    allowed = ["temperature", "seed"]
    answer = content(complete(max_tokens=16, temperature=1, seed=5, allowed_openai_params=allowed))
    assert answer == transport.generate(settings, server.http_url).text


def test_litellm_passes_stop_words(complete, expected):
    answer = content(complete(max_tokens=16, stop_words=["four", "never"]))
    assert answer == expected(16).split("four")[0]


@pytest.mark.parametrize("path", PATHS)
def test_litellm_shows_our_message_for_a_prompt_that_is_too_long(complete, expected, path):
    with pytest.raises(litellm.BadRequestError, match="the limit is 2047"):
        complete(path, prompt=TOO_LONG)
    assert content(complete(path, max_tokens=16)) == expected(16)


def test_litellm_shows_our_message_when_streaming(complete):
    with pytest.raises(litellm.BadRequestError, match="the limit is 2047"):
        list(complete(prompt=TOO_LONG, stream=True))


@pytest.fixture
def llama_index(server):
    """LlamaIndex's client; more tokens than responses, for it reads `tokens - 1` responses at most."""
    return NvidiaTriton(server_url=server.grpc_url, model_name="angelspec", tokens=48)


def test_llama_index_completes(llama_index, expected):
    assert llama_index.complete(PROMPT).text == expected(48)


def test_llama_index_streams(llama_index, expected):
    pieces = list(llama_index.stream_complete(PROMPT))
    assert "".join(piece.delta for piece in pieces) == pieces[-1].text == expected(48)
    assert len(pieces) > 1


def test_llama_index_chats(llama_index):
    answer = llama_index.chat([ChatMessage(role="user", content="Name a river.")])
    assert answer.message.content.strip()


def test_llama_index_shows_our_message_and_works_afterwards(llama_index, expected):
    with pytest.raises(InferenceServerException, match="the limit is 2047"):
        llama_index.complete(TOO_LONG)
    assert llama_index.complete(PROMPT).text == expected(48)


def test_llama_index_asks_for_a_loaded_model_to_be_loaded(server, expected):
    llm = NvidiaTriton(
        server_url=server.grpc_url, model_name="angelspec", tokens=48, triton_load_model_call=True, reuse_client=True
    )
    assert [llm.complete(PROMPT).text for _ in range(3)] == [expected(48)] * 3
