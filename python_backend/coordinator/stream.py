"""Text as it comes: incremental detokenising that never splits a character, and stop strings across token borders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

REPLACEMENT = "\ufffd"
NO_CONTROLS: Mapping[int, str] = {}
Decode = Callable[[Sequence[int]], str]


class TextStream:
    """Turns tokens into text deltas; their concatenation is the decoded output, cut before the first stop string.

    `push` takes one token and says whether a stop string was completed; `take` hands out the text that is safe to
    send: no incomplete character, no beginning of a stop string.
    """

    def __init__(
        self, decode: Decode, stop_words: Sequence[str] = (), controls: Mapping[int, str] = NO_CONTROLS
    ) -> None:
        """controls: control tokens that stop words hold, which are matched though they are no text of the output."""
        self._decode, self._controls = decode, controls
        self._stop_words = [word for word in stop_words if word]
        self._ids: list[int] = []
        # Text is decoded from `prefix` on and compared with the part before `read`, because some tokenizers
        # decode a token differently at the start of a string.
        self._prefix = self._read = 0
        self.text = ""  # everything decoded so far, control tokens included
        self._unseen: list[tuple[int, int]] = []  # where control tokens begin and end in it
        self._sent = 0

    def push(self, token: int) -> bool:
        """True if the text now holds a stop string; the text then ends before it."""
        if token in self._controls:
            begin = len(self.text)
            self._unseen.append((begin, begin + len(self._controls[token])))
            return self._append(self._controls[token])
        self._ids.append(token)
        before = self._decode(self._ids[self._prefix : self._read])
        after = self._decode(self._ids[self._prefix :])
        if after.endswith(REPLACEMENT):
            return False  # an incomplete character: the next token continues it
        self._prefix, self._read = self._read, len(self._ids)
        return self._append(after[len(before) :])

    def take(self) -> str:
        """The text that became safe since the last call."""
        safe = len(self.text) - self._held()
        return self._send(safe)

    def finish(self) -> str:
        """The rest: what was held back, and an incomplete character as the decoder renders it."""
        if self._read < len(self._ids):
            before = self._decode(self._ids[self._prefix : self._read])
            self._append(self._decode(self._ids[self._prefix :])[len(before) :])
            self._prefix, self._read = self._read, len(self._ids)
        return self._send(len(self.text))

    def _send(self, end: int) -> str:
        """The text from what was sent last up to `end`, without control tokens."""
        delta = ""
        for begin, after in self._unseen:
            delta += self.text[self._sent : min(begin, end)]
            self._sent = max(self._sent, min(after, end))
        delta += self.text[self._sent : end]
        self._sent = max(self._sent, end)
        self._unseen = [span for span in self._unseen if span[1] > self._sent]
        return delta

    def _append(self, delta: str) -> bool:
        searched = len(self.text)
        self.text += delta
        ends = [
            found for word in self._stop_words if (found := self.text.find(word, max(0, searched - len(word) + 1))) >= 0
        ]
        if ends:
            self.text = self.text[: min(ends)]
            self._ids, self._prefix, self._read = [], 0, 0
        return bool(ends)

    def _held(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        return max((_overlap(self.text, word) for word in self._stop_words), default=0)


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of the text that is a proper beginning of the word."""
    start = max(0, len(text) - len(word) + 1)
    while (start := text.find(word[0], start)) >= 0:
        if word.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
