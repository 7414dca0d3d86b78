"""What was found so far: kept on disk after every pass, so that a run goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from build_scripts.exactness.combinations import Arithmetic, Run
from build_scripts.exactness.near_ties import NEAR_TIE

Tokens = list[int]


class Mismatch(NamedTuple):
    """The first token of an answer that is not that of plain decoding alone."""

    question: int
    position: int  # in the answer
    expected: int
    found: int
    gap: float  # of their scores by an independent computation in float32


@dataclass
class Tally:
    """One pass of one run, or a sum of them."""

    compared: int = 0  # tokens; of an answer that differs, up to where it does
    drafted: int = 0
    accepted: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)

    def near_ties(self, arithmetic: Arithmetic) -> list[Mismatch]:
        """Those that float rounding explains; none where logits are promised to be the same bits."""
        return [] if arithmetic.to_the_bit else [m for m in self.mismatches if m.gap < NEAR_TIE]

    def real(self, arithmetic: Arithmetic) -> list[Mismatch]:
        ties = self.near_ties(arithmetic)
        return [m for m in self.mismatches if m not in ties]


def total(tallies: Iterable[Tally]) -> Tally:
    result = Tally()
    for tally in tallies:
        result.compared += tally.compared
        result.drafted += tally.drafted
        result.accepted += tally.accepted
        result.mismatches += tally.mismatches
    return result


class Results:
    """References by arithmetic, and tallies by run and pass, in one JSON file."""

    def __init__(self, file: Path, identity: dict[str, Any]) -> None:
        """identity: what the results depend on; a file of another identity is begun anew."""
        self._file = file
        stored = json.loads(file.read_text()) if file.is_file() else {}
        if stored.get("identity") != identity:
            stored = {"identity": identity, "references": {}, "passes": {}}
        self._stored = stored

    def reference(self, arithmetic: Arithmetic) -> dict[int, Tokens]:
        """The answers of plain decoding, each alone, as far as they were computed."""
        found = self._stored["references"].get(str(arithmetic), {})
        return {int(number): tokens for number, tokens in found.items()}

    def add_reference(self, arithmetic: Arithmetic, answers: dict[int, Tokens]) -> None:
        self._stored["references"][str(arithmetic)] = answers
        self._save()

    def has(self, run: Run, name: str) -> bool:
        return name in self._stored["passes"].get(str(run), {})

    def add(self, run: Run, name: str, tally: Tally) -> None:
        self._stored["passes"].setdefault(str(run), {})[name] = asdict(tally)
        self._save()

    def of(self, run: Run) -> Tally:
        """All passes of a run."""
        return total(
            Tally(**{**stored, "mismatches": [Mismatch(*m) for m in stored["mismatches"]]})
            for stored in self._stored["passes"].get(str(run), {}).values()
        )

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(self._stored))
        fresh.replace(self._file)
