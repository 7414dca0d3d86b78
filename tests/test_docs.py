"""What the pages point at is there: files, headings, make targets, programs."""

from __future__ import annotations

import re

import pytest

from python_backend.settings import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
FOLDERS = ("python_backend", "trtllm_engines", "build_scripts", "benchmarks", "training", "clients", "tests")
ROOMS = [room.name for room in (ROOT / "python_backend").iterdir() if room.is_dir()]


def anchors(page):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_commands_exist(page):
    text = page.read_text()
    for named in re.findall(r"`([\w/.-]+\.(?:py|yaml|pbtxt|toml|lock))`", text):
        if "/" in named and named.split("/")[0] in (FOLDERS if not named.endswith(".py") else (*FOLDERS, *ROOMS)):
            assert any((ROOT / base / named).exists() for base in ("", "python_backend", "docs")), named
    for module in re.findall(r"python3? -m ([\w.]+)", text):
        if module.split(".")[0] in FOLDERS:
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    for target in re.findall(r"(?:`|^|\$ )make ([a-z][a-z-]+)", text, re.MULTILINE):
        assert target in TARGETS, target
