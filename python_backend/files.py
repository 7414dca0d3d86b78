"""Files that appear whole, and locks that tell what a killed process left from what a living one still needs.

What is being written lies beside its place, in a folder that its writer holds a lock on. The system drops the lock
with the last process that has it, however that ends; neither a reused process id nor another container can deceive.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = ".unfinished-"


def lock(path: Path) -> int | None:
    """Hold a file or folder of ours until the descriptor is closed, in all processes that inherit it. None where
    another holds it, or it is another user's. Raises OSError where it is gone or its file system has no locks."""
    held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = os.fstat(held)
        if mine.st_uid == os.getuid() and os.path.samestat(mine, path.lstat()):
            return held
    except BlockingIOError:
        pass
    except OSError:
        os.close(held)
        raise
    os.close(held)
    return None


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Yields a path of the same name, to make a file or folder at; it takes its place only once it is whole. A file
    replaces what was there, a folder must not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work, held = _work_folder(path)
    try:
        yield work / path.name
        os.replace(work / path.name, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if held is not None:
            os.close(held)


def _work_folder(path: Path) -> tuple[Path, int | None]:
    """Beside `path`, and the lock on it; none on a file system that has no locks."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{path.name}-", dir=path.parent))
        try:
            held = lock(work)
        except FileNotFoundError:
            continue  # swept before it was locked
        except OSError:
            return work, None
        if held is not None:
            return work, held


def sweep_unfinished(folder: Path) -> list[Path]:
    """Remove what killed writers left anywhere below a folder. Returns what it was."""
    swept = []
    for parent, names, _ in os.walk(folder):
        for name in [name for name in names if name.startswith(UNFINISHED)]:
            names.remove(name)
            work = Path(parent) / name
            with suppress(OSError):
                if (held := lock(work)) is not None:
                    shutil.rmtree(work, ignore_errors=True)
                    os.close(held)
                    swept.append(work)
    return swept
