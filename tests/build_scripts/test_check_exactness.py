"""Every combination of settings that is allowed gives plain decoding's tokens, and every other is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from build_scripts.exactness import combinations, near_ties, page
from build_scripts.exactness.combinations import DFLY, MTP, NONE, Arithmetic, Combination, Run
from build_scripts.exactness.compare import Told, compare, fill
from build_scripts.exactness.questions import ask_all
from build_scripts.exactness.results import Results
from build_scripts.exactness.running import Answered, Pass, Subject
from python_backend.settings import DrafterSettings
from tests.support.checkpoints import VOCABULARY, load_reference
from tests.support.drafters import save_drafter

TOKENS, SLOTS = 24, 8
MIXED = Pass("mixed", streams=SLOTS, gap_s=0.002, seed=1)
SILENT = Told(lambda name, count: None, lambda: None, lambda: None, lambda: False)


@pytest.fixture(scope="module")
def subject(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A random model with random drafters, which are mostly wrong, and prompts that repeat themselves."""
    folder = tmp_path_factory.mktemp("exactness")
    networks = {
        name: DrafterSettings(
            kind="network", least_confidence=0, folder=save_drafter(kind, folder / kind, tiny_llama, layers)
        )
        for name, kind, layers in ((MTP, "mtp", (3,)), (DFLY, "dfly", (0, 1, 2)))
    }
    chance = np.random.default_rng(0)
    prompts = [chance.integers(3, VOCABULARY, 8 + 7 * i).tolist() * 2 for i in range(6)]
    return Subject(
        tiny_llama, networks, ask_all(prompts, TOKENS), SLOTS, 256, folder, {"threads": 1, "compiled_copies": 2}
    )


@pytest.fixture(scope="module")
def results(subject: Subject) -> Results:
    """All runs as they are set, none standing for another."""
    model = load_reference(subject.checkpoint)
    found = Results(subject.cache_dir / "results.json", {})
    complete = fill(
        subject,
        sorted({combinations.run_of(c) for c in combinations.combinations() if not combinations.refusal(c)}),
        [MIXED],
        found,
        lambda q, before, one, other: near_ties.gap(model, list(q.prompt), q.sampling, before, one, other),
        SILENT,
    )
    assert complete
    return found


ALLOWED = [c for c in combinations.combinations() if not combinations.refusal(c)]


@pytest.mark.parametrize("combination", ALLOWED, ids=lambda c: "-".join(map(str, c)).replace(" ", ""))
def test_every_allowed_combination_gives_the_tokens_of_plain_decoding_alone(
    results: Results, combination: Combination
) -> None:
    run = combinations.run_of(combination)
    tally = results.of(run)
    assert tally.real(run.arithmetic) == []
    assert tally.compared >= 250
    assert bool(tally.drafted) == (run.policy == "fixed" and run.drafts) or run.policy == "dcut"


def test_speculation_is_really_on(results: Results) -> None:
    """Guards the test above against runs that never accept or never reject a draft."""
    for drafters in combinations.DRAFTERS:
        tally = results.of(Run(Arithmetic("torch", "exact", False), "fixed", drafters))
        assert (tally.accepted > 0, tally.drafted > tally.accepted) == ((drafters != NONE,) * 2), drafters


def test_a_wrong_token_is_found_and_is_no_near_tie_where_bits_are_promised() -> None:
    questions = ask_all([[5, 6]], 4)
    expected = {0: [1, 2, 3, 4], 1: [5, 6, 7, 8]}
    answered = Answered({0: [1, 2, 3, 4], 1: [5, 6, 9, 9]}, drafted=7, accepted=2)
    tally = compare(questions, expected, answered, lambda question, before, one, other: 1e-4)
    assert (tally.compared, tally.drafted, tally.accepted) == (7, 7, 2)
    assert [m[:4] for m in tally.mismatches] == [(1, 2, 7, 9)]
    free, invariant = Arithmetic("openvino", "exact", False), Arithmetic("openvino", "exact", True)
    assert (tally.near_ties(free), tally.real(free)) == (tally.mismatches, [])
    assert (tally.near_ties(invariant), tally.real(invariant)) == ([], tally.mismatches)
    with pytest.raises(ValueError, match="question 1 was answered with 1 tokens, alone with 4"):
        compare(questions, expected, Answered({1: [5]}), lambda *_: 0.0)


def test_what_was_computed_is_not_computed_again_unless_something_else_is_asked(
    subject: Subject, tmp_path: Path
) -> None:
    few = subject._replace(questions=subject.questions[:2], cache_dir=tmp_path)
    run, begun = Run(Arithmetic("torch", "exact", False), "fixed", "prompt_lookup"), []
    told = SILENT._replace(begin=lambda name, count: begun.append(name))

    def again(identity: str, passes: list[Pass]) -> bool:
        begun.clear()
        return fill(few, [run], passes, Results(tmp_path / "results.json", {"of": identity}), lambda *_: 0.0, told)

    alone, plain = Pass("alone", streams=1), "torch exact: plain, alone"
    assert again("a", [alone])
    assert begun == [plain, f"{run}: alone"]
    assert again("a", [alone, MIXED])
    assert begun == [f"{run}: mixed"]
    assert again("a", [alone, MIXED])
    assert begun == []
    assert again("b", [alone])
    assert begun == [plain, f"{run}: alone"]
    told = told._replace(stop=lambda: True)
    assert not again("c", [alone])
    assert begun == []


def test_the_page_counts_what_is_allowed_refused_and_missing(results: Results) -> None:
    allowed = combinations.allowed()
    text = page.page(results, allowed, {"Date": "today"})
    refused = sum(map(len, combinations.refused().values()))
    assert len(ALLOWED) + refused == 2 * 3 * 2 * 3 * 5
    assert f"{len(ALLOWED)} combinations of settings are allowed and come to {len(allowed)} runs" in text
    assert f"{refused} are refused" in text
    assert "int8-dynamic with target.invariant false" in text
    assert "0 mismatches that rounding does not explain" in text
    compared = results.of(Run(Arithmetic("torch", "exact", False), "dcut", "mtp")).compared
    assert f"| torch exact | dcut | mtp | {compared:,} |" in text
    assert "| openvino exact, invariant | any, or off | none, or any |" in text
    assert f"{len(allowed)} of the {len(allowed)} runs have fewer than 20,000 tokens so far" in text
    nothing = page.page(Results(Path("nothing"), {}), allowed, {})
    assert nothing.count("| not run yet |") == len(allowed)
