"""The table of all combinations, and the page that keeps it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from build_scripts.exactness import combinations
from build_scripts.exactness.combinations import ALL, NONE, Combination, Run
from build_scripts.exactness.results import Results, Tally, total
from build_scripts.tables import Grid
from python_backend.engines.quantization import CPUINFO

ENOUGH = 20_000  # tokens of every combination
FEATURES = ("avx2", "avx512f", "avx512_vnni", "amx_int8")
HOW = """\
Every answer is compared, token for token, with plain decoding of the same request alone by the same engine. The
coordinator runs in one process with its engines. In a whole run 64 requests, half at temperature 0 and half at 1, some
with top-p, top-k, min-p or a penalty, drafts of 1, 3 or 7, arrive alone, 16 and 32 at a time, at once and staggered.
Of an answer that differs, the tokens up to the difference count; `accepted` shows that speculation took place.
"""
COLUMNS = ["target", "policy", "drafters", "tokens", "drafted", "accepted", "mismatches", "near-ties among them"]


def cpu() -> tuple[str, list[str]]:
    """(model name, those of FEATURES that it has) as the kernel says."""
    text = CPUINFO.read_text()
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    words = flags[1].split() if flags else []
    return (name[1].strip() if name else "unknown"), [f for f in FEATURES if f in words]


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def table(results: Results, allowed: dict[Run, list[Combination]]) -> Grid:
    """A row for each run: the tokens compared with plain decoding alone, and what differed."""
    rows = []
    for run in sorted(allowed):
        tally = results.of(run)
        policy, drafters = (run.policy, run.drafters) if run.drafts else ("any, or off", "none, or any")
        if not tally.compared:
            rows.append([str(run.arithmetic), policy, drafters, "not run yet", *[""] * 4])
            continue
        ties = len(tally.near_ties(run.arithmetic))
        rows.append(
            [str(run.arithmetic), policy, drafters]
            + [f"{n:,}" for n in (tally.compared, tally.drafted, tally.accepted)]
            + [str(len(tally.mismatches)), str(ties)]
        )
    return Grid("Every combination against plain decoding alone", COLUMNS, rows)


def refusals() -> Grid:
    rows = [
        [", ".join(sorted({_target(c) for c in group})), str(len(group)), message]
        for message, group in combinations.refused().items()
    ]
    return Grid("Refused at start-up", ["target", "combinations", "because"], rows)


def autos() -> Iterator[str]:
    """What `auto` comes to on this CPU."""
    for engine in combinations.ENGINES:
        for invariant in (False, True):
            combination = Combination(engine, "auto", invariant, "off", NONE)
            if not combinations.refusal(combination):
                yield f"{_target(combination)}: {combinations.run_of(combination).arithmetic}"


def in_all(results: Results, allowed: dict[Run, list[Combination]]) -> tuple[Tally, int, int]:
    """(sum, near-ties, real mismatches)"""
    tallies = {run: results.of(run) for run in allowed}
    ties = sum(len(t.near_ties(run.arithmetic)) for run, t in tallies.items())
    real = sum(len(t.real(run.arithmetic)) for run, t in tallies.items())
    return total(tallies.values()), ties, real


def page(results: Results, allowed: dict[Run, list[Combination]], facts: dict[str, str]) -> str:
    """facts: what the page says about how it was made."""
    tally, ties, real = in_all(results, allowed)
    name, features = cpu()
    refused = refusals()
    missing = sum(results.of(run).compared < ENOUGH for run in allowed)
    lines = [
        f"# Exactness on {name}",
        "",
        f"Written by `make exactness`. CPU: {name} ({', '.join(features)}).",
        *(f"{key}: {value}." for key, value in facts.items()),
        "",
        f"**{tally.compared:,} tokens compared, {real} mismatches that rounding does not explain, {ties} near-ties.**",
        *([f"**{missing} of the {len(allowed)} runs have fewer than {ENOUGH:,} tokens so far.**"] if missing else []),
        f"{sum(map(len, allowed.values()))} combinations of settings are allowed and come to {len(allowed)} runs here; "
        f"{sum(int(row[1]) for row in refused.rows)} are refused.",
        "",
        HOW,
        table(results, allowed).markdown(),
        'The rows "any, or off" stand for no drafters with any policy, and for policy `off` with any drafters:',
        f"nothing is drafted there. They ran with policy `off` and the drafters {ALL}.",
        "",
        "`auto` comes to, as set and as computed:",
        "",
        *(f"- {line}" for line in autos()),
        "",
        "Refused at start-up:",
        "",
        refused.markdown(),
    ]
    return "\n".join(lines)


def _target(c: Combination) -> str:
    return f"{c.engine}, quantization {c.quantization}, invariant {str(c.invariant).lower()}"
