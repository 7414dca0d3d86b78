"""What runs a drafter's graphs: a session. It keeps the keys and values of every slot's context, appends to them, and
gives the candidates of each draft; how much of that one pass does is its own business.

    torch       the training networks themselves, operator by operator: the reference, and for CUDA (`torch_session`)
    OpenVINO    compiled graphs over a paged context: on a CPU (`openvino_session`)
    TensorRT    built engines: in the target's process on a GPU (`trtllm_engines/runtime`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from python_backend.drafters.drafting import Started
from python_backend.protocol import Array, ProtocolError


@dataclass(frozen=True, eq=False)
class Append:
    """New context rows of b sequences, in the order of their slots."""

    slot: Array  # [b] ascending
    past: Array  # [b] rows that each slot keeps
    count: Array  # [b]
    features: Any  # [C, F] packed; a tensor where the target left it on the device
    following: Array  # [C] the token after each row

    @property
    def end(self) -> Array:
        """[b] rows of each slot afterwards."""
        end: Array = self.past + self.count
        return end


@dataclass(frozen=True, eq=False)
class Asked:
    """Drafts that n of the sequences of an `Append` are asked for."""

    member: Array  # [n] indices, ascending
    anchor: Array  # [n] tokens, each right after its context
    depth: int  # most drafts that will be picked, at least 1
    candidates: int  # of each draft


class Session(Protocol):
    """What runs a drafter's network, by whatever means."""

    engine: str  # what `describe` says of it
    engine_version: str
    dtype: str

    def append(self, new: Append) -> None:
        """Store rows, without drafts. Raises ProtocolError where the drafter cannot."""
        ...

    def start(self, new: Append, asked: Asked) -> Started:
        """Store rows, then draft. What it returns is valid until the session's next pass."""
        ...


def check_rows(new: Append) -> None:
    """Raise ProtocolError for a sequence without new rows: a recurrent chain would have no state to start from."""
    for i in np.flatnonzero(new.count < 1):
        raise ProtocolError(f"tensor 'context_count' is {new.count[i]} for slot {new.slot[i]}, minimum 1")
