"""Text deltas: whole characters, no piece of a stop string, and together exactly the decoded output."""

from hypothesis import given
from hypothesis import strategies as st

from python_backend.coordinator.stream import TextStream


def decode_bytes(ids):
    return bytes(ids).decode("utf-8", errors="replace")


@given(st.text(max_size=60), st.integers(1, 5))
def test_deltas_never_split_a_character_and_add_up(text, every):
    stream = TextStream(decode_bytes)
    deltas = []
    for i, byte in enumerate(text.encode()):
        stream.push(byte)
        if i % every == 0:
            deltas.append(stream.take())
    if "\ufffd" not in text:
        assert all("\ufffd" not in d for d in deltas)
    assert "".join(deltas) + stream.finish() == text


@given(st.lists(st.integers(0, 255), max_size=40))
def test_broken_bytes_come_out_as_the_decoder_renders_them(ids):
    stream = TextStream(decode_bytes)
    out = ""
    for token in ids:
        stream.push(token)
        out += stream.take()
    out += stream.finish()
    assert out.replace("\ufffd", "") == decode_bytes(ids).replace("\ufffd", "")


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_string(text, words):
    stream = TextStream(decode_bytes, words)
    out, stopped = "", False
    for byte in text.encode():
        stopped = stream.push(byte)
        out += stream.take()
        if stopped:
            break
    out += stream.finish()
    ends = [min(text.find(w) + len(w) for w in words if w in text)] if any(w in text for w in words) else []
    if not ends:
        assert (out, stopped) == (text, False)
        return
    seen = text[: ends[0]]  # the text when the first stop string was complete
    assert stopped
    assert out == seen[: min(seen.find(w) for w in words if w in seen)]


CONTROL = 256  # decodes to nothing


def decode_text(ids):
    return decode_bytes([token for token in ids if token != CONTROL])


@given(
    st.lists(st.sampled_from([*b"ab<>", CONTROL]), max_size=40),
    st.lists(st.sampled_from(["<end>", "a<end>", "<end>b", "ab", "a<end><end>b", "<e"]), max_size=3),
    st.integers(1, 3),
)
def test_a_control_token_in_a_stop_string_is_matched_and_never_shown(ids, words, every):
    stream = TextStream(decode_text, words, {CONTROL: "<end>"})
    out, stopped, used = "", False, []
    for i, token in enumerate(ids):
        used.append(token)
        stopped = stream.push(token)
        if i % every == 0:
            out += stream.take()
        if stopped:
            break
    out += stream.finish()
    marked = ["<end>" if token == CONTROL else chr(token) for token in used]
    ends = [at for word in words if (at := "".join(marked).find(word)) >= 0]
    assert stopped == bool(ends)
    visible, at = "", 0
    for token, text in zip(used, marked, strict=True):
        if token != CONTROL:
            visible += text if not ends or at < min(ends) else ""
        at += len(text)
    assert out == visible
