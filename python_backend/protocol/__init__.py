"""The step protocol between the coordinator and its engines: the only place that knows tensor names.

One message is one synchronous call that carries the whole ragged batch: B sequences, R packed rows.
`encode` turns a message into named numpy tensors, `decode` reads it back and checks every shape; a broken
contract raises `ProtocolError`, which names the tensor, the value and the limit.
"""

from python_backend.protocol.description import (
    DESCRIBE,
    DESCRIPTION,
    HOSTED,
    OPEN,
    OPERATION,
    RELEASE,
    STEP,
    Description,
)
from python_backend.protocol.message import (
    Array,
    Column,
    Message,
    ProtocolError,
    Tensors,
    check_at_least,
    row_starts,
)
from python_backend.protocol.steps import (
    NO_TOKEN,
    Context,
    DrafterResult,
    DrafterStep,
    Part,
    PrefixHit,
    PrefixQuery,
    Release,
    SamplingColumns,
    TargetResult,
    TargetStep,
)

__all__ = [
    "DESCRIBE",
    "DESCRIPTION",
    "HOSTED",
    "NO_TOKEN",
    "OPEN",
    "OPERATION",
    "RELEASE",
    "STEP",
    "Array",
    "Column",
    "Context",
    "Description",
    "DrafterResult",
    "DrafterStep",
    "Message",
    "Part",
    "PrefixHit",
    "PrefixQuery",
    "ProtocolError",
    "Release",
    "SamplingColumns",
    "TargetResult",
    "TargetStep",
    "Tensors",
    "check_at_least",
    "row_starts",
]
