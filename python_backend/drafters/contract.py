"""The graphs that a drafter's step is made of, and the tensors of each: the one place with their names and shapes.

n sequences, each with `length` rows of context, of which a graph is handed `context` rows of memory; what lies beyond
`length` is never looked at. D drafts, S candidates of a draft.

    block drafters      context   features of committed rows -> their keys and values, a layer each
                        block     anchor and context -> candidates of D drafts; where each depends on the draft before
                                  it, only what `follow` needs of each
                        follow    that, and the draft before -> candidates: DFly corrects the hidden state, DSpark adds
                                  a Markov term to the logits
    recurrent drafters  append    committed rows with the token after each -> keys and values, state, candidates
                        step      the state joined with a drafted token -> the same, one row a sequence

Embedding and head are inputs, so that all engines on a GPU share one copy. What picks a draft among the candidates is
left to the caller: it knows the noise. Outputs of a block come draft by draft, so that those of one draft are one piece
of memory. The names of dynamic dimensions say the range that engines are built for (`build_drafter`).
"""

from __future__ import annotations

from typing import NamedTuple

from python_backend.drafters.config import DrafterConfig, Head
from python_backend.drafters.pick import RACING

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
    """The inputs and outputs of an exported graph, in their order."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def contracts(config: DrafterConfig) -> tuple[GraphContract, ...]:
    """All graphs of a drafter, in the order in which a step runs them."""
    if not config.is_block:
        return _append(config), _step(config)
    head = config.block_parts.head
    return _context(config), _block(config, head), *(() if head == "none" else (_follow(config, head),))


def candidates(config: DrafterConfig) -> int:
    """S: candidates of a draft, best first; all that a `Pick` may ask for."""
    return min(RACING, config.draft_vocabulary_size)


def lent_inputs(contract: GraphContract) -> tuple[str, ...]:
    """Those of its inputs that the target lends, its last ones."""
    return tuple(port.name for port in contract.inputs if port.name in LENT)


def _lent(config: DrafterConfig, *names: str) -> tuple[Port, ...]:
    """All, or those named."""
    sizes = {"embedding": config.vocabulary_size, "head": config.draft_vocabulary_size}
    return tuple(Port(name, (sizes[name], config.hidden_size)) for name in names or LENT)


def _candidates(config: DrafterConfig, *leading: Dimension) -> tuple[Port, ...]:
    shape = (*leading, candidates(config))
    return Port("token", shape, True), Port("logits", shape)


def _context(config: DrafterConfig) -> GraphContract:
    rows = (ROWS, config.kv_heads, config.head_dim)
    return GraphContract(
        "context",
        (Port("features", (ROWS, config.feature_size)), Port("position", (ROWS,), True)),
        _cache(config.layers, rows),
    )


def _block(config: DrafterConfig, head: Head) -> GraphContract:
    waiting = {
        "correction": Port("hidden", (config.depth, SEQUENCES, config.hidden_size)),
        "markov": Port("base", (config.depth, SEQUENCES, config.draft_vocabulary_size)),
    }
    return GraphContract(
        "block",
        (
            Port("anchor", (SEQUENCES,), True),
            Port("length", (SEQUENCES,), True),
            *_cache(config.layers, _held(config)),
            *_lent(config, *(("embedding",) if head == "correction" else LENT)),
        ),
        _candidates(config, config.depth, SEQUENCES) if head == "none" else (waiting[head],),
    )


def _follow(config: DrafterConfig, head: Head) -> GraphContract:
    previous = Port("previous", (SEQUENCES,), True)
    if head == "correction":
        inputs = (Port("hidden", (SEQUENCES, config.hidden_size)), previous, *_lent(config))
    else:
        inputs = (Port("base", (SEQUENCES, config.draft_vocabulary_size)), previous)
    return GraphContract("follow", inputs, _candidates(config, SEQUENCES))


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
