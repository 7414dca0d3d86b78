"""What a server leaves on the machine when it is killed, and whose it is.

Beside the shared memory of a server lies its claim, a locked file. The launcher, the server and its models all hold
the lock, so a claim that can be locked has nobody left. Memory without a claim, and other users', is never touched.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from build_scripts.triton_install import SHM
from python_backend.files import lock
from python_backend.triton_bridge.link import link_folder

NAME = "angelspec-"
CLAIM = "claim"  # last part of a claim's name; it holds the process id of tritonserver


def unique_prefix(port: int) -> str:
    """For the names of a server's shared memory. Containers may share that, so the process id is not enough."""
    return f"{NAME}{os.getpid()}-{port}-{secrets.token_hex(4)}-"


@dataclass(frozen=True)
class Claim:
    """On all shared memory of one prefix."""

    file: Path
    held: int  # descriptor, for the processes that are to hold it too

    @classmethod
    def take(cls, prefix: str, folder: Path = SHM) -> Claim:
        """Raises OSError where there is such a claim, or it cannot be locked."""
        file = folder / f"{prefix}{CLAIM}"
        while True:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with suppress(FileNotFoundError):
                if (held := lock(file)) is not None:
                    return cls(file, held)
            file.unlink(missing_ok=True)  # another start looked at it before it was locked

    def name_server(self, pid: int) -> None:
        """Keep whose link folder goes with it."""
        self.file.write_text(str(pid))

    def release(self) -> None:
        """Remove everything that is claimed, then the claim. Interrupted, it is for the next start to finish."""
        remove(self.file)
        with suppress(OSError):  # released twice
            os.close(self.held)


def sweep(folder: Path = SHM) -> list[Path]:
    """Remove what killed servers of this user left. Returns their claims."""
    swept = []
    for claim in sorted(folder.glob(f"{NAME}*-{CLAIM}")):
        with suppress(OSError):
            if (held := lock(claim)) is not None:
                remove(claim)
                os.close(held)
                swept.append(claim)
    return swept


def lives(process: Path) -> bool:
    """process: its folder in /proc. What only waits to be reaped is dead: in a container nobody may ever do so."""
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def remove(claim: Path) -> None:
    """All that a claim stands for; the claim itself last. A process that has the server's id by now keeps its folder,
    and the claim stays for another time."""
    prefix = claim.name.removesuffix(CLAIM)
    for region in claim.parent.glob(f"{prefix}*"):
        if region != claim and region.lstat().st_uid == os.getuid():
            region.unlink(missing_ok=True)
    pid = claim.read_text() if claim.exists() else ""
    if pid.isdecimal():
        if lives(Path("/proc") / pid):
            return
        shutil.rmtree(link_folder(int(pid)), ignore_errors=True)
    claim.unlink(missing_ok=True)
