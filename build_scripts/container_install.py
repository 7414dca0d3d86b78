"""The tritonserver of NVIDIA's containers, which bring its Python and its libraries along."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from build_scripts.triton_install import PreflightError, check_shm, models_environment

SERVER = "tritonserver"
DEFAULT = Path("/opt/tritonserver/bin") / SERVER  # where the containers have it


@dataclass(frozen=True)
class ContainerInstall:
    """An `Installation` that needs nothing laid out."""

    binary: Path

    def check(self) -> None:
        if not self.binary.is_file():
            raise PreflightError(f"there is no {SERVER} here: start in the container, see docs/h20.md")
        check_shm()

    def backends(self, cache: Path) -> Path:  # noqa: ARG002 (part of an interface)
        return self.binary.parent.parent / "backends"

    def environment(self) -> dict[str, str]:
        return models_environment()


def find_container_install() -> ContainerInstall:
    """The server on the path, or where the containers have it."""
    return ContainerInstall(Path(shutil.which(SERVER) or DEFAULT))
