"""Any drafter engine walked along a text as serving would: call by call, with what was committed since the last."""

from __future__ import annotations

import numpy as np

from python_backend.engine import DrafterEngine
from python_backend.protocol import NO_TOKEN, Context, DrafterStep
from training.corpus.shards import Sample
from training.evaluate.simulate import Acceptance
from training.fit.batches import Text

SLOT = np.zeros(1, dtype=np.int32)


def walk_engine(engine: DrafterEngine, text: Text, sample: Sample, depth: int) -> Acceptance:
    """What is accepted if the target writes this text. The engine's slot 0 is used and released."""
    result, ids = Acceptance(depth), text.ids
    done, at = 0, text.response_start
    width = engine.describe().feature_size
    features = text.states[:, :width].float().numpy()
    while at < len(ids) - 1:
        context = Context(int(SLOT[0]), done, ids[done + 1 : at + 1].tolist(), features[done:at])
        step = DrafterStep.of(
            [context],
            depth,
            temperature=np.array([sample.temperature], dtype=np.float32),
            seed=np.array([sample.seed], dtype=np.uint64),
        )
        drafted = engine.step(step).draft_ids[0]
        done = at
        at += result.step(drafted[drafted != NO_TOKEN], ids[at + 1 :])
    engine.release(SLOT)
    return result
