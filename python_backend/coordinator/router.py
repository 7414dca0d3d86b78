"""Which workload a request is, and so which drafter it gets: by its words, then by what the target makes of them."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save_file

from python_backend.coordinator.sequence import Sequence
from python_backend.protocol import Array, Description
from python_backend.settings import WORKLOADS, Settings, Workload

log = logging.getLogger(__name__)

_CODE = re.compile(
    r"```|\b(def|class|import|return|function|const|public|static|void|#include)\b.{0,200}[(:{;]"
    r"|\b(python|javascript|typescript|java|c\+\+|rust|golang|sql|bash|regex|html|css)\b"
    r"|\b(code|function|script|program|refactor|docstring|unit test|compile|debug)\b",
    re.IGNORECASE,
)
_MATH = re.compile(
    r"\d\s*[-+*/^=×÷]\s*\d|\\(frac|sqrt|sum|int)\b|\$[^$]+\$"
    r"|\b(solve|equation|calculate|compute|sum of|product of|percent|fraction|integral|derivative|probability|prove)\b"
    r"|\bhow (many|much|far|long|old)\b",
    re.IGNORECASE,
)


def route(text: str) -> Workload:
    """A keyword rule: code before math before chat."""
    if _CODE.search(text):
        return "code"
    if _MATH.search(text):
        return "math"
    return "chat"


@dataclass(frozen=True, eq=False)
class PromptClassifier:
    """A linear model on the mean of one captured layer over the prompt; fitted by `training.evaluate.fit_router`."""

    target_sha256: str
    layer: int
    weight: npt.NDArray[np.float32]  # [workloads, hidden], on features of any scale
    bias: npt.NDArray[np.float32]  # [workloads]

    def __call__(self, features: Array) -> Workload:
        """features: [P, hidden] the layer's states of all prompt rows."""
        return WORKLOADS[int((self.weight @ pool(features) + self.bias).argmax())]

    def save(self, file: Path) -> None:
        about = {"target_sha256": self.target_sha256, "layer": str(self.layer)}
        save_file({"weight": self.weight, "bias": self.bias}, file, metadata=about)

    @classmethod
    def load(cls, file: Path) -> PromptClassifier:
        with safe_open(file, framework="numpy") as stored:
            about = stored.metadata()
            return cls(
                about["target_sha256"], int(about["layer"]), stored.get_tensor("weight"), stored.get_tensor("bias")
            )


def pool(features: Array) -> npt.NDArray[np.float32]:
    """[hidden] mean over rows. The first, where attention puts what it does not need, is left out if there are more."""
    rows = features[1:] if len(features) > 1 else features
    return rows.mean(axis=0, dtype=np.float64).astype(np.float32)


class Router:
    """Decides by the words of a prompt, and again once the target has read it; nothing was drafted until then."""

    def __init__(self, settings: Settings, target: Description) -> None:
        self._settings = settings
        self._classifier: PromptClassifier | None = None
        self._columns = slice(0, 0)
        if (file := settings.coordinator.router).is_file():
            self._use(PromptClassifier.load(file), target)

    def settle(self, sequence: Sequence) -> None:
        """Give a sequence whose prompt is done the drafter of its workload, unless the client has said which it is."""
        if self._classifier and sequence.undecided and sequence.drafter and sequence.features:
            sequence.workload = self._classifier(np.concatenate([rows[:, self._columns] for rows in sequence.features]))
            sequence.drafter = self._settings.drafter_of(sequence.workload, sequence.thinking)
        sequence.undecided = False

    def _use(self, classifier: PromptClassifier, target: Description) -> None:
        if classifier.target_sha256 != target.weights_sha256:
            log.info("router: key words, because the classifier was fitted for another target")
        elif classifier.layer not in target.feature_layers:
            log.info("router: key words, because the target does not capture layer %d", classifier.layer)
        else:
            width = target.feature_size // len(target.feature_layers)
            begin = target.feature_layers.index(classifier.layer) * width
            self._classifier, self._columns = classifier, slice(begin, begin + width)
