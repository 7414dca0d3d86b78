"""Files appear whole, and what a killed writer left is told from what a living one writes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from contextlib import suppress

from python_backend.files import UNFINISHED, appearing, sweep_unfinished

WRITER = """
    import sys, time
    from pathlib import Path
    from python_backend.files import appearing

    with appearing(Path(sys.argv[1])) as part:
        part.write_text("half")
        print("writing", flush=True)
        time.sleep(600)
"""


def writer(path):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "writing\n"
    return process


def test_a_file_replaces_the_one_before_only_once_it_is_whole(tmp_path):
    file = tmp_path / "new" / "table.json"
    for text in ("one", "two"):
        with appearing(file) as part:
            part.write_text(text)
    with suppress(ValueError), appearing(file) as part:
        part.write_text("thr")
        raise ValueError
    assert file.read_text() == "two"
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_appears_whole(tmp_path):
    with appearing(tmp_path / "model") as part:
        part.mkdir()
        (part / "weights").touch()
        assert not (tmp_path / "model").exists()
    assert (tmp_path / "model" / "weights").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path):
    dead, alive = writer(tmp_path / "a" / "dead"), writer(tmp_path / "b" / "alive")
    try:
        dead.kill()
        dead.communicate()
        assert len(list(tmp_path.glob(f"*/{UNFINISHED}*"))) == 2
        (swept,) = sweep_unfinished(tmp_path)
        assert swept.parent == tmp_path / "a"
        assert list((tmp_path / "a").iterdir()) == []
        assert len(list((tmp_path / "b").glob(f"{UNFINISHED}alive*/alive"))) == 1
    finally:
        alive.kill()
        alive.communicate()
    assert len(sweep_unfinished(tmp_path)) == 1
