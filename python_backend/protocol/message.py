"""Messages as packed tensors: what a message's fields declare is what is encoded, decoded and checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Tensors = dict[str, Array]


class ProtocolError(ValueError):
    """A message breaks the contract; becomes INVALID_ARG on the wire."""


Default = Callable[[int], Array]  # length of the first axis -> the column that a sender may leave out


class Column(NamedTuple):
    """How a message declares one of its tensors."""

    name: str
    dtype: np.dtype[Any]
    length: str | None  # the count its first axis must have: B, R, C, …
    default: Default | None


def column(dtype: npt.DTypeLike, length: str | None = None, default: Default | None = None, **field: Any) -> Any:
    """A packed tensor field of a message; see Column."""

    @lru_cache(maxsize=64)
    def shared(count: int) -> Array:
        """One read-only array a length, so that a default is recognised without looking into it."""
        assert default is not None
        values = default(count).astype(dtype)
        values.flags.writeable = False
        return values

    metadata = {"dtype": np.dtype(dtype), "length": length, "default": shared if default else None}
    return dataclasses.field(metadata=metadata, **field)


def filled(value: float) -> Default:
    """The same value for every sequence."""
    return lambda length: np.full(length, value)


def no_items(_: int) -> Array:
    """A ragged column of which nobody has any."""
    return np.zeros(0)


def no_features(length: int) -> Array:
    """Rows without features: [C, 0]."""
    return np.zeros((length, 0))


def engine_time() -> Any:
    """[1] ms that the call spent inside the engine; 0 where nobody measured."""
    return column(np.float32, default_factory=lambda: np.zeros(1, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages: fields declared with `column` are the tensors, their names are the wire names.

    A column that holds its default throughout is left out of the message: every tensor costs a call about 50 µs.
    """

    batch_column: ClassVar[str]  # its first axis is B; never left out

    @classmethod
    @cache
    def columns(cls) -> tuple[Column, ...]:
        return tuple(Column(f.name, **f.metadata) for f in dataclasses.fields(cls))

    @classmethod
    def defaults(cls, batch: int) -> Tensors:
        """The columns that have a default, as a batch has them that uses none of what they say."""
        return {c.name: c.default(batch) for c in cls.columns() if c.default}

    def encode(self) -> Tensors:
        """Named contiguous tensors of the declared dtypes."""
        tensors: Tensors = {}
        for name, dtype, _, default in self.columns():
            value = getattr(self, name)
            if default is not None:
                usual = default(len(value))
                if value is usual or np.array_equal(value, usual):
                    continue
            tensors[name] = np.ascontiguousarray(value, dtype=dtype)
        return tensors

    @classmethod
    def decode(cls, tensors: Tensors) -> Self:
        """Read a message back. Raises ProtocolError for a missing tensor, a wrong dtype or a wrong length."""
        columns: Tensors = {}
        left_out: list[Column] = []
        for c in cls.columns():
            if c.name in tensors:
                columns[c.name] = tensors[c.name]
                if columns[c.name].dtype != c.dtype:
                    raise ProtocolError(f"tensor '{c.name}' has dtype {columns[c.name].dtype}, expected {c.dtype}")
            elif c.default is None:
                raise ProtocolError(f"tensor '{c.name}' is missing from {cls.__name__}")
            else:
                left_out.append(c)
        # The columns of length B come first: they count the rows of the others.
        batch = len(columns[cls.batch_column])
        for c in sorted(left_out, key=lambda c: c.length not in ("B", None)):
            length = batch if c.length in ("B", None) else cls.lengths(columns)[c.length]
            columns[c.name] = c.default(length)  # type: ignore[misc]
        message = cls(**columns)
        message.check()
        return message

    @classmethod
    def lengths(cls, columns: Mapping[str, Array]) -> dict[str, int]:
        """The counts that the columns' first axes are checked against."""
        return {"B": len(columns[cls.batch_column])}

    def check(self) -> None:
        """Raise ProtocolError where a column's first axis differs from its declared count."""
        lengths = self.lengths(vars(self))
        for name, _, expected, _ in self.columns():
            actual = len(getattr(self, name))
            if expected is not None and actual != lengths[expected]:
                raise ProtocolError(f"tensor '{name}' has {actual} entries, expected {expected} = {lengths[expected]}")


def check_at_least(name: str, values: Array, minimum: int) -> None:
    """Raise ProtocolError naming the first entry below the minimum."""
    if (low := values < minimum).any():
        i = int(np.argmax(low))
        raise ProtocolError(f"tensor '{name}' is {values[i]} for sequence {i}, minimum {minimum}")


def row_starts(counts: Array) -> npt.NDArray[np.int64]:
    """[B + 1] offsets of packed rows: sequence i owns rows starts[i]:starts[i + 1]."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
