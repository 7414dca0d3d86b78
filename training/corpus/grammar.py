"""Prompts from seed lists: phrasings with holes, and what fills the holes. `seeds/*.yaml` holds them.

Lists are YAML lists, or one entry a line. A hole is `{name}`: an entry of the list of that name. Digits at its end do
not count, so that `{city}` and `{city2}` are two draws, never the same. `{a:2-90}` is a whole number, and `{a}` is that
number again. An entry may have holes itself.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np
import yaml

from python_backend.settings import ROOT, Workload

SEEDS = ROOT / "training" / "seeds"
HELD_OUT = 8  # one entry in so many is kept for evaluation
HOLE = re.compile(r"\{([A-Za-z_]+)(\d*)(?::(\d+)-(\d+))?\}")


@dataclass(frozen=True)
class Grammar:
    """The seed lists of one domain."""

    prompts: tuple[str, ...]
    openers: tuple[str, ...]  # how a user turn begins that the model completes
    follow_ups: tuple[str, ...]
    lists: dict[str, tuple[str, ...]]
    words: dict[str, tuple[str, ...]]  # short lists without a topic of their own

    def split(self, held_out: bool) -> Grammar:
        """One side of the split: no entry is on both, words and the empty opener excepted."""
        return Grammar(
            side(self.prompts, held_out),
            side(self.openers, held_out),
            side(self.follow_ups, held_out),
            {name: side(entries, held_out) for name, entries in self.lists.items()},
            self.words,
        )

    def prompt(self, random: np.random.Generator) -> str:
        """A whole user turn."""
        return self._fill(_choose(self.prompts, random), random)

    def opener(self, random: np.random.Generator) -> str:
        """The first words of a user turn; may be empty."""
        return self._fill(_choose(self.openers, random), random)

    def follow_up(self, random: np.random.Generator) -> str:
        """A second user turn."""
        return self._fill(_choose(self.follow_ups, random), random)

    def _fill(self, text: str, random: np.random.Generator) -> str:
        filled: dict[str, str] = {}

        def entry(name: str) -> str:
            entries = self.lists.get(name) or self.words[name]
            unused = tuple(e for e in entries if e not in filled.values())
            return HOLE.sub(fill, _choose(unused or entries, random))

        def fill(hole: re.Match[str]) -> str:
            name, digits, low, high = hole.groups()
            key = name + digits
            if key not in filled:
                filled[key] = str(random.integers(int(low), int(high) + 1)) if low else entry(name)
            return filled[key]

        return HOLE.sub(fill, text)


def load_grammar(domain: Workload) -> Grammar:
    """Read a domain's seed lists."""
    content = yaml.safe_load((SEEDS / f"{domain}.yaml").read_text())
    return Grammar(
        prompts=_entries(content["prompts"]),
        openers=_entries(content["openers"]),
        follow_ups=_entries(content["follow_ups"]),
        lists={name: _entries(entries) for name, entries in content["lists"].items()},
        words={name: _entries(entries) for name, entries in content["words"].items()},
    )


def seed_lists_sha256() -> str:
    """Checksum of all seed lists, for provenance."""
    return hashlib.sha256(b"".join(f.read_bytes() for f in sorted(SEEDS.glob("*.yaml")))).hexdigest()


def side(entries: tuple[str, ...], held_out: bool) -> tuple[str, ...]:
    """The entries of one side, decided by their own text, so that a new entry moves no other."""
    return tuple(e for e in entries if not e or is_held_out(e) == held_out)


def is_held_out(entry: str) -> bool:
    return int.from_bytes(hashlib.sha256(entry.encode()).digest()[:4], "big") % HELD_OUT == 0


def _entries(content: str | list[str]) -> tuple[str, ...]:
    return tuple(content.splitlines() if isinstance(content, str) else content)


def _choose(entries: tuple[str, ...], random: np.random.Generator) -> str:
    return entries[int(random.integers(len(entries)))]
