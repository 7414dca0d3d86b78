"""The report's numbers, against exports whose answers are known."""

import io
import json
import re

import pytest
from rich.console import Console

from clients import report, verdict
from clients.report import LoadTest, Run
from clients.wire import Speculation, total
from tests.clients.exports import AT_ONCE, BROKEN_OFF, STREAMED, export_of


def run(policy="spec", turn=0, requested=2, error=""):
    name = f"{policy}-2-{turn}.json"
    return Run(policy=policy, concurrency=2, round=turn, requested=requested, export_file=name, error=error)


def folder_of(path, *runs_and_exports):
    """A load test's folder with these runs; an export of None is not written."""
    for a_run, content in runs_and_exports:
        if content is not None:
            (path / a_run.export_file).write_text(content)
    runs = [a_run for a_run, _ in runs_and_exports]
    (path / report.RUNS_FILE).write_text(LoadTest(title="a test", runs=runs).model_dump_json())
    return path


def points_of(folder):
    return report.points_of(LoadTest.model_validate_json((folder / report.RUNS_FILE).read_text()), folder)


def test_numbers_of_two_requests(tmp_path):
    (point,) = points_of(folder_of(tmp_path, (run(), export_of(STREAMED, AT_ONCE))))
    assert (point.policy, point.concurrency, point.requested, point.failed) == ("spec", 2, 2, 0)
    assert point.output_tokens == 7
    assert point.tokens_per_s == pytest.approx(7 / 0.5)  # from 0 to 500 ms
    assert point.first_token_p50_ms == pytest.approx(250)  # of 100 and 400
    assert point.first_token_p95_ms == pytest.approx(385)
    assert point.per_token_p50_ms == pytest.approx(200 / 3)  # the streamed one alone has one
    assert point.user_tokens_per_s == pytest.approx((4 / 0.3 + 3 / 0.4) / 2)
    assert point.mean_acceptance_length == pytest.approx(1 + 3 / 4)


def test_a_request_that_broke_off_is_counted_as_failed_and_nowhere_else(tmp_path):
    whole = folder_of(tmp_path, (run(requested=3), export_of(STREAMED, AT_ONCE, BROKEN_OFF)))
    (point,) = points_of(whole)
    assert point.failed == 1
    assert point.output_tokens == 7


def test_requests_that_the_export_lacks_are_failed(tmp_path):
    (point,) = points_of(folder_of(tmp_path, (run(requested=5), export_of(STREAMED, AT_ONCE))))
    assert point.failed == 3


def test_a_run_that_failed_counts_all_its_requests_as_failed(tmp_path):
    (point,) = points_of(folder_of(tmp_path, (run(requested=8, error="prompt has 5000 tokens"), None)))
    assert (point.failed, point.output_tokens, point.tokens_per_s) == (8, 0, 0.0)


def test_rounds_are_taken_together_and_policies_are_not(tmp_path):
    both = export_of(STREAMED, AT_ONCE)
    folder = folder_of(tmp_path, (run(turn=0), both), (run("plain"), both), (run(turn=1), both))
    spec, plain = points_of(folder)
    assert (spec.policy, spec.output_tokens, spec.requested) == ("spec", 14, 4)
    assert (plain.policy, plain.output_tokens, plain.requested) == ("plain", 7, 2)
    assert spec.tokens_per_s == pytest.approx(14 / 1.0)  # two rounds of 500 ms each


def shown(folder):
    screen = io.StringIO()
    report.report(Console(file=screen, width=100), folder)
    return screen.getvalue()


def test_the_report_shows_a_table_and_leaves_a_plot_and_numbers(tmp_path):
    text = shown(folder_of(tmp_path, (run(), export_of(STREAMED, AT_ONCE)), (run("plain"), export_of(STREAMED))))
    assert "0/2" in text
    assert "1/2" in text
    assert "14.0" in text
    assert (tmp_path / report.PLOT_FILE).read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / report.SUMMARY_FILE).read_text())
    assert [(point["policy"], point["failed"]) for point in numbers] == [("spec", 0), ("plain", 1)]


def test_the_report_says_why_a_run_failed(tmp_path):
    text = shown(folder_of(tmp_path, (run(requested=8, error="prompt has 5000 tokens"), None)))
    assert "8/8" in text
    assert "prompt has 5000 tokens" in text


def test_another_folder_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} is no folder of a load test"):
        shown(tmp_path)


@pytest.mark.parametrize(
    ("plain", "spec", "said"),
    [
        (76.0, 64.0, "4 users: speculation does not pay, plain decoding is 19% faster (64.0 against 76.0 tokens/s)"),
        (50.0, 60.0, "4 users: speculation pays, 20% faster than plain decoding (60.0 against 50.0 tokens/s)"),
        (50.0, 50.5, "4 users: speculation makes no difference (50.5 against 50.0 tokens/s)"),
    ],
)
def test_the_winner_and_the_lead_are_said_in_words(plain, spec, said):
    assert verdict.measured(4, plain, spec) == said


@pytest.mark.parametrize(
    ("gain", "words"), [(0.8, "does not pay: .* 25% faster"), (1.5, "pays: .* 50% faster"), (1.0, "no difference")]
)
def test_without_plain_runs_the_servers_own_prediction_is_said(gain, words):
    assert re.search(words, verdict.predicted(Speculation(gain=gain, num_draft_tokens=3)))


def test_a_server_that_does_not_know_or_did_not_draft_is_not_quoted():
    assert verdict.predicted(Speculation(num_draft_tokens=3)) == ""
    assert verdict.predicted(Speculation(gain=1.0)) == ""


def test_the_report_says_who_won_at_each_concurrency(tmp_path):
    folder = folder_of(tmp_path, (run(), export_of(STREAMED, AT_ONCE)), (run("plain"), export_of(STREAMED)))
    spec, plain = (p.tokens_per_s for p in points_of(folder))
    assert verdict.measured(2, plain, spec) in " ".join(shown(folder).split())


def test_gains_are_summed_over_the_requests_that_have_one():
    parts = [Speculation(gain=0.5, num_drafts=3), Speculation(gain=1.5, num_drafts=1), Speculation(num_drafts=9)]
    assert total(parts).gain == pytest.approx(0.75)
    assert total([Speculation(num_drafts=2)]).gain is None
