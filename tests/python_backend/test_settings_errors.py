"""Wrong settings are told by place, key and remedy, in one line each, without the words of a library."""

from __future__ import annotations

import pytest

from python_backend.settings import load
from python_backend.settings_errors import SettingsError


@pytest.fixture
def complaints(tmp_path, monkeypatch):
    """What is said of a file's text with these variables."""
    file = tmp_path / "mine.yaml"

    def ask(text="", **variables):
        file.write_text(text)
        monkeypatch.setenv("ANGELSPEC_SETTINGS", str(file))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SettingsError) as caught:
            load()
        assert "pydantic" not in str(caught.value)
        return str(caught.value).replace(str(file), "FILE").splitlines()

    return ask


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("budget: {polcy: 'off'}", "FILE: unknown key 'budget.polcy'; did you mean 'budget.policy'?"),
        ("traget: {engine: torch}", "FILE: unknown key 'traget'; did you mean 'target'?"),
        ("drafters: {d: {knd: network}}", "FILE: unknown key 'drafters.d.knd'; did you mean 'drafters.d.kind'?"),
        ("budget: {policy: best}", "FILE: budget.policy is 'best': should be 'off', 'fixed' or 'dcut'"),
        ("coordinator: {depth: 65}", "FILE: coordinator.depth is 65: should be less than or equal to 64"),
    ],
)
def test_a_fault_of_the_file_names_it_and_the_key(complaints, text, complaint):
    assert complaints(text) == [complaint]


def test_a_key_like_no_other_is_answered_with_those_there_are(complaints):
    (line,) = complaints("xyz: 1")
    assert line.startswith("FILE: unknown key 'xyz'; there are target, drafters, ")


def test_a_fault_of_a_variable_names_the_variable(complaints):
    assert complaints(ANGELSPEC_COORDINATOR__DEPTH="-1") == [
        "ANGELSPEC_COORDINATOR__DEPTH: coordinator.depth is '-1': should be greater than or equal to 0"
    ]
    assert complaints(ANGELSPEC_COORDINATOR__DEPTH="1", ANGELSPEC_TARGET__ENGNE="torch") == [
        "ANGELSPEC_TARGET__ENGNE: unknown key 'target.engne'; did you mean 'target.engine'?"
    ]


def test_every_fault_has_its_line(complaints):
    assert len(complaints("xyz: 1\nbudget: {policy: best}")) == 2


def test_a_file_that_is_no_yaml_is_said_to_be_none_and_where(complaints):
    (line,) = complaints("target: {engine: torch")
    assert line.startswith("FILE is no YAML: ")
    assert "line 1" in line
