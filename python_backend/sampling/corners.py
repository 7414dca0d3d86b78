"""What sampling means at the corners of float32, the same on every path.

Any parameters within `contract.RANGES` and any row of logits without NaN give one token of the vocabulary:

- A temperature below `GREEDY_BELOW` is 0: argmax.
- A logit of -inf is a token that is not drawn. +inf counts as `LARGEST`. A row of nothing but -inf holds token 0 alone.
- Penalties saturate at plus or minus `LARGEST`; a token at -inf stays there.
- Where bans and `min_tokens` leave nothing, the token that was likeliest before the processors is all there is: a
  forbidden token is emitted rather than none.
- A row whose largest logit exceeds `FAR` temperatures is measured from it before it is divided, so that neither the
  quotient overflows nor the noise drowns. The distribution does not depend on that offset.
- Of equal logits the smallest token is the likeliest; top-k, top-p and min-p keep all that are equal at their border.

A row with NaN is the engine's failure. Its token is `BROKEN`, which equals no draft, and acceptance raises
`LogitsError` for the sequence that would emit it. Such a row behind a draft that is not accepted says nothing, as if it
had not run.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from python_backend.protocol import NO_TOKEN, Array

LARGEST = float(np.finfo(np.float32).max)
GREEDY_BELOW = float(np.float32(1e-5))  # the race would only add rounding to the argmax
FAR = 2.0**24  # float64 holds noise to 2^-28 beside such a logit
BROKEN = NO_TOKEN - 1


class LogitsError(RuntimeError):
    """An engine's logits are no numbers."""


def heat_of(temperature: Array) -> npt.NDArray[np.float32]:
    """[B] temperatures, 0 where argmax is meant."""
    return np.where(temperature >= GREEDY_BELOW, temperature, np.float32(0)).astype(np.float32, copy=False)


def check_emitted(slot: Array, next_token: Array) -> None:
    """Raise LogitsError where a sequence would emit the token of a broken row. slot, next_token: [B]."""
    if (broken := next_token == BROKEN).any():
        i = int(broken.argmax())
        raise LogitsError(
            f"the target's logits are NaN for sequence {i} in slot {slot[i]}, expected numbers: its engine computed "
            "nonsense; look at its dtype and quantisation"
        )
