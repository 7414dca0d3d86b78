"""At the corners of float32 a drafter still drafts tokens, with confidences that are numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.drafters.drafting import take
from python_backend.drafters.engine import NetworkDrafter
from python_backend.drafters.pick import FirstChoice, pick_for
from python_backend.protocol import Context, DrafterStep, ProtocolError
from tests.python_backend.sampling import corners
from tests.support.checkpoints import VOCABULARY
from tests.support.drafters import save_drafter

DEPTH, ROWS = 3, 4


def picked(temperature: list[float], top_k: list[int], top_p: list[float], logits: torch.Tensor) -> torch.Tensor:
    """Columns of the winners and their probabilities."""
    n = len(temperature)
    columns = (np.array(temperature, np.float32), np.array(top_k, np.int32), np.array(top_p, np.float32))
    pick = pick_for(*columns, np.arange(n, dtype=np.uint64), np.arange(n), VOCABULARY)
    tokens = torch.arange(logits.shape[1]).expand(n, -1)
    return torch.stack(take(tokens, pick.scores(tokens, logits, 0)))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(corners.temperatures, corners.counts, corners.probabilities), min_size=1, max_size=3),
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40),
)
def test_any_parameters_pick_a_candidate_with_a_probability(asked, logits) -> None:
    ordered = torch.tensor(sorted(logits, reverse=True)).expand(len(asked), -1)
    winners, probability = picked(*map(list, zip(*asked, strict=True)), ordered)
    assert ((winners >= 0) & (winners < len(logits))).all()
    assert ((probability > 0) & (probability <= 1)).all()


def test_a_tiny_temperature_takes_the_first_choice() -> None:
    columns = (np.zeros(1, np.int32), np.array([0.9], np.float32), np.zeros(1, np.uint64), np.zeros(1), VOCABULARY)
    assert isinstance(pick_for(np.array([1e-38], np.float32), *columns), FirstChoice)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> NetworkDrafter:
    folder = save_drafter("mtp", tmp_path_factory.mktemp("drafter"), tiny_llama, (3,))
    return NetworkDrafter("drafter", folder, tiny_llama, 4, 64, eight_bit=False)


def step_of(feature: float = 1.0, **columns: list[float]) -> DrafterStep:
    """Two sequences of four context rows whose features are all this."""
    usual = DrafterStep.defaults(2)
    sampling = {name: np.array(values, dtype=usual[name].dtype) for name, values in columns.items()}
    contexts = [
        Context(slot, 0, range(first, first + ROWS), np.full((ROWS, 48), value, dtype=np.float32))
        for slot, first, value in ((0, 0, 1.0), (2, ROWS, feature))
    ]
    return DrafterStep.of(contexts, DEPTH, **sampling)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_drafts_are_tokens_whatever_requests_ask_for(drafter: NetworkDrafter, data: st.DataObject) -> None:
    asked = {"temperature": corners.temperatures, "top_k": corners.counts, "top_p": corners.probabilities}
    step = step_of(**{name: [data.draw(values), data.draw(values)] for name, values in asked.items()})
    drafted = drafter.step(step)
    assert ((drafted.draft_ids >= 0) & (drafted.draft_ids < VOCABULARY)).all()
    assert ((drafted.confidence > 0) & (drafted.confidence <= 1)).all()


@pytest.mark.parametrize("feature", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_features_that_are_no_numbers_make_drafts_of_no_confidence(
    drafter: NetworkDrafter, feature: float, temperature: float
) -> None:
    alone, beside = drafter.step(step_of()), drafter.step(step_of(feature, temperature=[0.0, temperature]))
    assert ((beside.draft_ids >= 0) & (beside.draft_ids < VOCABULARY)).all()
    assert ((beside.confidence >= 0) & (beside.confidence <= 1)).all()
    assert beside.draft_ids[0].tolist() == alone.draft_ids[0].tolist()
    if not np.isfinite(feature):
        assert not beside.confidence[1].any()


@pytest.mark.parametrize(("name", "value"), [("temperature", np.nan), ("top_p", 2.0), ("top_k", -3)])
def test_parameters_beyond_their_limits_are_refused(drafter: NetworkDrafter, name: str, value: float) -> None:
    with pytest.raises(ProtocolError, match=rf"'{name}' is .* for sequence 1, limit 0 to"):
        drafter.step(step_of(**{name: [0, value]}))
