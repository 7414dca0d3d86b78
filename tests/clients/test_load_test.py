"""The load test asks perf_analyzer for the right runs, in a fair order, and never hides a failure."""

import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from clients import load_test, wire
from clients.load_test import PROMPTS, plan
from tests.clients.exports import STREAMED, export_of


def test_our_prompts_are_24_over_three_workloads_and_all_different():
    prompts = load_test.read_prompts(PROMPTS)
    assert len(prompts) == 24
    assert len({entry["prompt"] for entry in prompts}) == 24
    counted = {name: sum(entry["workload"] == name for entry in prompts) for name in ("chat", "code", "math")}
    assert counted == {"chat": 8, "code": 8, "math": 8}
    assert all(entry["prompt"].strip() == entry["prompt"] and len(entry["prompt"]) < 400 for entry in prompts)


def test_any_file_with_prompts_will_do(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "é", "id": 1}\n\n{"prompt": "b", "workload": "code"}\n')
    assert load_test.read_prompts(path) == [
        {"prompt": "é", "workload": "auto"},
        {"prompt": "b", "workload": "code"},
    ]


@pytest.mark.parametrize("line", ['{"text": "a"}', "[1]", "not json", '"a"'])
def test_a_line_without_a_prompt_is_named(tmp_path, line):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"own\.jsonl, line 2"):
        load_test.read_prompts(path)


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text("\n")
    with pytest.raises(ValueError, match="has no prompts"):
        load_test.read_prompts(path)


def test_the_input_data_are_inputs_that_the_server_has_each_with_one_value():
    data = load_test.input_data(
        [{"prompt": "a", "workload": "auto"}, {"prompt": "b", "workload": "code"}],
        {"max_tokens": 8, "temperature": 0.0, "seed": 0} | load_test.POLICIES["plain"],
    )["data"]
    assert [json.loads(step["messages"][0])[0]["content"] for step in data] == ["a", "b"]
    assert all(step.keys() <= wire.INPUTS.keys() for step in data)
    assert all(len(value) == 1 for step in data for value in step.values())
    assert all(step["num_draft_tokens"] == [0] and step["stream"] == [True] for step in data)


def test_policies_take_turns_and_the_first_one_changes():
    runs = list(plan(["plain", "spec"], [1, 4], rounds=2, requests=3))
    order = [(run.concurrency, run.policy, run.round) for run in runs]
    assert order == [
        (1, "plain", 0),
        (1, "spec", 0),
        (1, "spec", 1),
        (1, "plain", 1),
        (4, "plain", 0),
        (4, "spec", 0),
        (4, "spec", 1),
        (4, "plain", 1),
    ]
    assert len({run.export_file for run in runs}) == len(runs)  # perf_analyzer refuses a file that exists
    assert [run.requested for run in runs] == [3] * 4 + [4] * 4  # at least one a user


def test_perf_analyzers_last_words_are_kept():
    complain = [sys.executable, "-c", "import sys; sys.exit('Thread [1] had error: prompt has 5000 tokens')"]
    assert load_test.execute(complain, timeout_s=30) == "Thread [1] had error: prompt has 5000 tokens"
    assert load_test.execute([sys.executable, "-c", ""], timeout_s=30) == ""


def test_a_run_that_hangs_is_stopped_and_reported():
    hang = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert "not done after 0.5 s" in load_test.execute(hang, timeout_s=0.5)


@pytest.mark.parametrize("text", ["1,x", "0", "", "-4", "1.5"])
def test_concurrencies_are_whole_numbers_above_0(text):
    with pytest.raises(ValueError, match="whole numbers above 0"):
        load_test.counts(text)


def test_an_unknown_policy_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown policy 'eagle': there are plain, spec"):
        load_test.chosen("plain,eagle", list(load_test.POLICIES))


FAKE_PERF_ANALYZER = """
import sys
argv = sys.argv
if argv[argv.index("--concurrency-range") + 1] == "{fails_at}":
    sys.exit("Thread [0] had error: the queue is full")
open(argv[argv.index("--profile-export-file") + 1], "x").write({export!r})
"""


@pytest.mark.parametrize(("fails_at", "status", "failures"), [(0, 0, [0, 0]), (2, 1, [0, 2])])
def test_the_program_ends_with_an_error_where_a_request_failed(tmp_path, monkeypatch, fails_at, status, failures):
    script = tmp_path / "perf_analyzer.py"
    script.write_text(FAKE_PERF_ANALYZER.format(fails_at=fails_at, export=export_of(STREAMED, STREAMED)))
    monkeypatch.setattr(load_test.transport, "require_server", lambda url: None)
    program = typer.Typer()
    program.command()(load_test.main)
    options = ["--concurrency", "1,2", "--requests", "2", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(program, [*options, "--perf-analyzer", f"{sys.executable} {script}"])
    assert result.exit_code == status, result.output
    (folder,) = (tmp_path / "out").iterdir()
    assert [point["failed"] for point in json.loads((folder / "summary.json").read_text())] == failures
