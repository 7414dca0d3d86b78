"""perf_analyzer's export is read as it writes it: scalars, lists, and empty strings for what is absent."""

import pytest

from clients import export
from clients.export import ExportError
from tests.clients.exports import AT_ONCE, BROKEN_OFF, STREAMED, export_of, output, request


def test_tokens_are_counted_by_their_ids_and_not_by_responses():
    streamed = export.read_request(STREAMED)
    assert streamed.tokens == (1, 2, 1)
    assert streamed.output_tokens == 4
    assert streamed.finish_reason == "length"
    assert streamed.speculation.num_drafts == 3


def test_times_of_a_streamed_request():
    streamed = export.read_request(STREAMED)
    assert streamed.time_to_first_token_s == pytest.approx(0.1)
    assert streamed.time_per_output_token_s == pytest.approx(0.2 / 3)  # the 3 tokens after the first response
    assert streamed.tokens_per_s == pytest.approx(4 / 0.3)


def test_an_answer_in_one_response_has_no_time_per_token():
    at_once = export.read_request(AT_ONCE)
    assert at_once.time_per_output_token_s is None
    assert at_once.time_to_first_token_s == pytest.approx(0.4)


def test_the_first_token_is_that_of_the_first_response_that_has_one():
    late = export.read_request(request(0, [10, 30], [output("", text=""), output([1, 2])]))
    assert late.time_to_first_token_s == pytest.approx(0.03)


def test_a_request_without_its_last_response_is_not_complete():
    assert not export.read_request(BROKEN_OFF).complete
    assert not export.read_request(request(0, [], [])).complete
    assert export.read_request(AT_ONCE).complete


@pytest.mark.parametrize(("value", "elements"), [("", 0), (0, 1), ([], 0), ([7, 8], 2), ([[7, 8, 9]], 3)])
def test_elements_of_a_tensor(value, elements):
    assert export.count(value) == elements


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"experiments": [{}]}', export_of(request(0, [1], [{"text_output": "no ids"}]))],
    ids=["empty", "a list", "no experiments", "no requests", "another model"],
)
def test_another_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ExportError, match=r"other\.json is not a profile export"):
        export.read(path)


def test_ids_that_are_no_numbers_are_refused(tmp_path):
    path = tmp_path / "odd.json"
    path.write_text(export_of(request(0, [1], [output("seven")])))
    with pytest.raises(ExportError, match="output_ids is 'seven'"):
        export.read(path)
