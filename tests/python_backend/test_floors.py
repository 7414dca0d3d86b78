"""The rooms of the house stand on floors: each uses what is below it, and no two of one floor use each other."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest

from python_backend.settings import ROOT

FLOORS = {
    "assembly": 4,
    "triton_bridge": 4,
    "coordinator": 3,
    "engines": 2,
    "drafters": 2,
    "budget": 2,
    "sampling": 2,
    "checkpoints": 1,
    "protocol": 0,
}  # what is not named here is a file of floor 0
OUTER = {  # folder -> folders of ours that it may use beside itself
    "python_backend": set(),
    "clients": set(),
    "trtllm_engines": {"python_backend"},
    "training": {"python_backend"},
    "build_scripts": {"python_backend", "trtllm_engines"},
    "benchmarks": {"python_backend", "trtllm_engines", "build_scripts", "training", "clients"},
}


def imports(folder):
    """(file, module) of every import below a folder, those inside functions too."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                yield file, node.module
                yield from ((file, f"{node.module}.{name.name}") for name in node.names)
            elif isinstance(node, ast.Import):
                yield from ((file, name.name) for name in node.names)


def room(parts):
    return parts[1] if len(parts) > 1 else ""


def uses():
    """room -> rooms of python_backend that it imports; "" is floor 0."""
    found = defaultdict(set)
    for file, module in imports("python_backend"):
        parts = module.split(".")
        if parts[0] == "python_backend":
            own, other = file.relative_to(ROOT / "python_backend").parts[0].removesuffix(".py"), room(parts)
            found[own if own in FLOORS else ""].add(other if other in FLOORS else "")
    return {name: others - {name} for name, others in found.items()}


def test_no_room_uses_one_above_it():
    for name, others in uses().items():
        for other in others:
            assert FLOORS.get(other, 0) <= FLOORS.get(name, 0), f"{name} uses {other}, which stands above it"


def test_no_rooms_use_each_other_in_a_circle():
    graph = uses()

    def reach(name, seen):
        for other in graph.get(name, set()) - seen:
            seen.add(other)
            reach(other, seen)
        return seen

    assert [name for name in graph if name in reach(name, set())] == []


def test_every_room_has_its_floor():
    rooms = {folder.name for folder in (ROOT / "python_backend").iterdir() if (folder / "__init__.py").is_file()}
    assert rooms == set(FLOORS)


@pytest.mark.parametrize("folder", OUTER)
def test_folders_use_only_what_is_below_them(folder):
    ours = set(OUTER) | {"tests"}
    for file, module in imports(folder):
        other = module.split(".")[0]
        assert other not in ours - {folder} - OUTER[folder], f"{file.relative_to(ROOT)} uses {module}"


def test_only_the_bridge_knows_triton():
    for file, module in imports("python_backend"):
        assert module.split(".")[0] != "triton_python_backend_utils" or "triton_bridge" in file.parts, file
