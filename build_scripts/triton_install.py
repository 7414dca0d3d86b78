"""The tritonserver that the `nvidia-pytriton` wheel carries: where it is, what it needs, how it is laid out.

The wheel keeps one stub of the Python backend for each Python; the server wants the right one beside its backend, so
the backend is copied into the cache with it.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from python_backend.files import appearing
from python_backend.settings import ROOT

WHEEL = "nvidia-pytriton"
SHM = Path("/dev/shm")
MIN_SHM = 64 * 2**20  # bytes; Docker's default is just that
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class PreflightError(RuntimeError):
    """Something that the server needs is missing; the message says what to do."""


class Installation(Protocol):
    """A tritonserver on this machine."""

    @property
    def binary(self) -> Path: ...

    def check(self) -> None:
        """Raise PreflightError for the first thing that it would miss."""
        ...

    def backends(self, cache: Path) -> Path:
        """The backend directory to serve with."""
        ...

    def environment(self) -> dict[str, str]:
        """What the server's process needs beside the caller's environment."""
        ...


@dataclass(frozen=True)
class Install:
    """The wheel's tritonserver and its libraries."""

    root: Path  # holds bin, backends, python_backend_stubs
    libraries: Path
    version: str  # of the wheel

    @property
    def binary(self) -> Path:
        return self.root / "bin" / "tritonserver"

    def check(self) -> None:
        check_numpy()
        check_shm()
        self.stub(PYTHON)
        python_library()

    def environment(self) -> dict[str, str]:
        # The interpreter's own libpython first: another patch release of it cannot load this one's extension modules.
        libraries = [str(python_library().parent), str(self.libraries), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', '')}",  # the stub takes its prefix from here
            **models_environment(),
        }

    def stub(self, python: str) -> Path:
        """The Python backend's stub for this Python. Raises PreflightError where the wheel has none."""
        stubs = self.root / "python_backend_stubs"
        stub = stubs / python / "triton_python_backend_stub"
        if not stub.is_file():
            known = sorted((p.name for p in stubs.iterdir()), key=lambda name: [int(n) for n in name.split(".")])
            raise PreflightError(
                f"{WHEEL} {self.version} has no Python backend stub for Python {python}, only for {', '.join(known)}: "
                "make the environment with one of those"
            )
        return stub

    def backends(self, cache: Path) -> Path:
        """A backend directory for this Python under the cache; laid out at the first call."""
        folder = cache / "triton" / f"{self.version}-py{PYTHON}"
        if not folder.is_dir():
            try:
                with appearing(folder) as work:  # for servers that start at the same time
                    shutil.copytree(self.root / "backends", work)
                    shutil.copy2(self.stub(PYTHON), work / "python")
            except OSError:
                if not folder.is_dir():  # else another was first
                    raise
        return folder


def find_install() -> Install:
    """Raises PreflightError where the wheel is not installed."""
    spec = find_spec("pytriton")
    root = (
        Path(spec.submodule_search_locations[0]) / "tritonserver" if spec and spec.submodule_search_locations else None
    )
    if root is None or not (root / "bin" / "tritonserver").is_file():
        raise PreflightError(f"package '{WHEEL}' is not installed in {sys.prefix}: run `make setup`")
    return Install(root, root.parent.parent / "nvidia_pytriton.libs", importlib.metadata.version(WHEEL))


def python_library() -> Path:
    """The interpreter's own libpython, which the stub loads. Raises PreflightError where there is none."""
    name = str(sysconfig.get_config_var("INSTSONAME") or "")
    library = Path(sysconfig.get_config_var("LIBDIR") or "") / name
    if ".so" not in name:
        raise PreflightError(
            f"Python {PYTHON} at {sys.base_prefix} was built without a shared library, which the Python backend loads: "
            "use a Python built with --enable-shared, such as the system's"
        )
    if not library.is_file():
        raise PreflightError(f"{library} is missing: install it (on Debian and Ubuntu: libpython{PYTHON})")
    return library


def check_numpy() -> None:
    """With numpy 2 the stub of this Triton hands every input over empty."""
    version = importlib.metadata.version("numpy")
    if int(version.split(".")[0]) >= 2:
        raise PreflightError(f"numpy is {version}, this Triton's Python backend needs numpy < 2: run `make setup`")


def check_shm(folder: Path = SHM) -> None:
    """The server and its models talk through shared memory."""
    free = shutil.disk_usage(folder).free
    if free < MIN_SHM:
        raise PreflightError(
            f"{folder} has {free / 2**20:.0f} MiB free, the server needs {MIN_SHM / 2**20:.0f} MiB: remove what "
            "is left there, or enlarge it (in Docker: --shm-size=1g)"
        )


def check_port(name: str, host: str, port: int) -> None:
    """Raises PreflightError where the port is taken or may not be used."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PreflightError(
                f"{name} port {port} on {host} cannot be used: {os.strerror(error.errno or 0)}; stop what uses it, "
                f"or choose another with --{name}-port"
            ) from error


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody uses at this moment."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def models_environment() -> dict[str, str]:
    """What the models of any server of ours need."""
    return {
        "PYTHONPATH": ":".join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
        "OMP_WAIT_POLICY": "PASSIVE",  # engine threads that spin would starve the server on few cores
    }
