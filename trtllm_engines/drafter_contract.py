"""The graphs that a drafter's step is made of, and the tensors of each: the one place with their names and shapes.

n sequences, each with `length` rows of context, of which a graph is handed `context` rows of memory; what lies beyond
`length` is never looked at. D drafts, S candidates of a draft.

    block drafters      context   features of committed rows -> their keys and values, a layer each
                        block     anchor and context -> candidates of D drafts
                        rescore   one draft's candidates, once the draft before it is known: DFly's correction, which
                                  reads the hidden state and both embeddings, or DSpark's Markov head, which reads
                                  neither
    recurrent drafters  append    committed rows with the token after each -> keys and values, state, candidates
                        step      the state joined with a drafted token -> the same, one row a sequence

Embedding and head are inputs, so that all engines on a GPU share one copy. What picks a draft among the candidates is
left to the caller: it knows the noise. Outputs of a block come draft by draft, so that those of one draft are one piece
of memory. The names of dynamic dimensions say the range that engines are built for (`build_drafter`).
"""

from __future__ import annotations

from typing import NamedTuple

from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.pick import LIKELIEST

Dimension = int | str  # a fixed size, or the name of a dynamic one

LENT = ("embedding", "head")  # of the target, the same tensors in every call
SEQUENCES, ROWS, CHUNK, CONTEXT = "sequences", "rows", "chunk", "context"


class Port(NamedTuple):
    """An input or output. Integers are int64, everything else has the type that the graph was exported in."""

    name: str
    shape: tuple[Dimension, ...]
    integer: bool = False

    def dtype(self, exported: str) -> str:
        return "int64" if self.integer else exported


class GraphContract(NamedTuple):
    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def contracts(config: DrafterConfig) -> tuple[GraphContract, ...]:
    """All graphs of a drafter, in the order in which a step runs them."""
    if not config.is_block:
        return _append(config), _step(config)
    head = config.block_parts.head
    return (_context(config), _block(config), *((_rescore(config, head == "correction"),) if head != "none" else ()))


def candidates(config: DrafterConfig) -> int:
    """S: candidates of a draft, at any temperature."""
    return min(LIKELIEST, config.draft_vocabulary_size)


def _lent(config: DrafterConfig) -> tuple[Port, ...]:
    sizes = (config.vocabulary_size, config.draft_vocabulary_size)
    return tuple(Port(name, (size, config.hidden_size)) for name, size in zip(LENT, sizes, strict=True))


def _context(config: DrafterConfig) -> GraphContract:
    rows = (ROWS, config.kv_heads, config.head_dim)
    return GraphContract(
        "context",
        (Port("features", (ROWS, config.feature_size)), Port("position", (ROWS,), True)),
        _cache(config.layers, rows),
    )


def _block(config: DrafterConfig) -> GraphContract:
    draft = (config.depth, SEQUENCES, candidates(config))
    return GraphContract(
        "block",
        (
            Port("anchor", (SEQUENCES,), True),
            Port("length", (SEQUENCES,), True),
            *_cache(config.layers, _held(config)),
            *_lent(config),
        ),
        (
            Port("hidden", (config.depth, SEQUENCES, config.hidden_size)),
            Port("token", draft, True),
            Port("candidate", draft, True),
            Port("base", draft),
        ),
    )


def _rescore(config: DrafterConfig, corrects: bool) -> GraphContract:
    draft = (SEQUENCES, candidates(config))
    own = (Port("previous", (SEQUENCES,), True), Port("candidate", draft, True), Port("base", draft))
    hidden = Port("hidden", (SEQUENCES, config.hidden_size))
    inputs = (hidden, *own, *_lent(config)) if corrects else own
    return GraphContract("rescore", inputs, (Port("logits", draft),))


def _append(config: DrafterConfig) -> GraphContract:
    return GraphContract(
        "append",
        (
            Port("features", (SEQUENCES, CHUNK, config.feature_size)),
            Port("following", (SEQUENCES, CHUNK), True),
            Port("count", (SEQUENCES,), True),
            Port("length", (SEQUENCES,), True),
            *_cache(1, _held(config)),
            *_lent(config),
        ),
        _drafted(config, CHUNK),
    )


def _step(config: DrafterConfig) -> GraphContract:
    return GraphContract(
        "step",
        (
            Port("carried", (SEQUENCES, config.hidden_size)),
            Port("drafted", (SEQUENCES,), True),
            Port("length", (SEQUENCES,), True),
            *_cache(1, _held(config)),
            *_lent(config),
        ),
        _drafted(config, 1),
    )


def _drafted(config: DrafterConfig, rows: Dimension) -> tuple[Port, ...]:
    """What a recurrent drafter gives: the state after the last row, its candidates, keys and values of all rows."""
    draft, new = (SEQUENCES, candidates(config)), (SEQUENCES, rows, config.kv_heads, config.head_dim)
    return (
        Port("next_carried", (SEQUENCES, config.hidden_size)),
        Port("token", draft, True),
        Port("logits", draft),
        Port("new_keys", new),
        Port("new_values", new),
    )


def _held(config: DrafterConfig) -> tuple[Dimension, ...]:
    return SEQUENCES, config.kv_heads, CONTEXT, config.head_dim


def _cache(layers: int, shape: tuple[Dimension, ...]) -> tuple[Port, ...]:
    return tuple(Port(f"{kind}_{layer}", shape) for layer in range(layers) for kind in ("keys", "values"))
