"""The settings page is what the settings tree says."""

from build_scripts.settings_doc import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run `python -m build_scripts.settings_doc`"
