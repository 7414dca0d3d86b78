"""Get NVIDIA's perf_analyzer and the words that start it: `$(python -m build_scripts.perf_analyzer --print-command)`.

Its wheel is built for glibc 2.38. On an older Debian it runs through the dynamic loader of Debian 13, whose libraries
apt fetches and verifies into a folder of the cache; the system's own libc is never touched.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from python_backend.files import appearing
from python_backend.settings import load

VERSION = "2.60.0"
GLIBC = (2, 38)  # what the wheel is built for
PLATFORM = "manylinux_2_38_x86_64"
SUITE = "trixie"  # Debian 13
PACKAGES = ("libc6", "libstdc++6", "libgcc-s1", "libssl3t64", "zlib1g", "libzstd1")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
REMEDY = (
    "install perf_analyzer yourself (a system with glibc >= 2.38 takes it from pip, NVIDIA's tritonserver SDK "
    "container has it) and name it with --perf-analyzer"
)

Report = Callable[[str], None]


class PerfAnalyzerError(RuntimeError):
    """perf_analyzer cannot be had here; the message says why and what to do."""


def command(cache: Path, report: Report = lambda _: None) -> list[str]:
    """The words that start perf_analyzer; fetched at the first call. Raises PerfAnalyzerError."""
    if (machine := f"{platform.system()} {platform.machine()}") != "Linux x86_64":
        raise PerfAnalyzerError(f"perf_analyzer {VERSION} is built for Linux x86_64, this is {machine}: {REMEDY}")
    folder = cache / "perf_analyzer" / VERSION
    binary = folder / "wheel" / "perf_analyzer" / "bin" / "perf_analyzer"
    if not binary.is_file():
        report(f"downloading perf_analyzer {VERSION}")
        with appearing(folder / "wheel") as work:
            work.mkdir()
            fetch_wheel(work)
    if glibc() >= GLIBC:
        return [str(binary)]
    libraries = folder / SUITE
    if not libraries.is_dir():
        report(f"downloading the libraries of Debian {SUITE} for it")
        with appearing(libraries) as work:
            work.mkdir()
            fetch_libraries(work)
    return [str(loader(libraries)), "--library-path", library_path(libraries), str(binary)]


def glibc() -> tuple[int, ...]:
    """The version of glibc here."""
    name, version = platform.libc_ver()
    return tuple(int(part) for part in version.split(".")) if name == "glibc" else (0,)


def fetch_wheel(folder: Path) -> None:
    """Unpack the wheel into `folder`. pip would not install it here: it is for a newer system."""
    with tempfile.TemporaryDirectory() as download:
        run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
                *("--platform", PLATFORM, "--dest", download, f"perf-analyzer=={VERSION}"),
            ],
            f"perf-analyzer {VERSION} could not be downloaded",
        )
        (wheel,) = Path(download).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    (folder / "perf_analyzer" / "bin" / "perf_analyzer").chmod(0o755)


def fetch_libraries(folder: Path) -> None:
    """Unpack Debian 13's libraries into `folder`; apt verifies them, with state of its own."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb") and KEYRING.is_file()):
        found = ".".join(map(str, glibc()))
        raise PerfAnalyzerError(f"perf_analyzer needs glibc 2.38, this system has {found} and is no Debian: {REMEDY}")
    with tempfile.TemporaryDirectory() as temporary:
        state = Path(temporary)
        apt = apt_command(state, debian_mirror())
        run([*apt, "update"], f"the package lists of Debian {SUITE} could not be fetched")
        run([*apt, "download", *PACKAGES], f"packages of Debian {SUITE} could not be fetched", cwd=state)
        for package in state.glob("*.deb"):
            run(["dpkg-deb", "--extract", str(package), str(folder)], f"{package.name} could not be unpacked")


def debian_mirror() -> str:
    """The mirror that this system's own apt sources name. Raises PerfAnalyzerError where they name none."""
    fields = "$(COMPONENT) $(CODENAME) $(REPO_URI)"
    listed = run(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"], "apt-get indextargets failed")
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    for line in listed.splitlines():
        component, name, uri = line.split(" ", 2)
        if component == "main" and name == codename:
            return uri
    raise PerfAnalyzerError(
        f"apt knows no package list of '{codename}' main to take the mirror from: run `apt-get update`, or {REMEDY}"
    )


def apt_command(state: Path, mirror: str) -> list[str]:
    """apt-get that sees this one suite and keeps everything under `state`."""
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    (state / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {SUITE} main\n")
    options = {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": "-",
        "Dir::Etc::preferences": "-",
        "APT::Sandbox::User": "",  # the sandbox user cannot read a private folder
        "APT::Architecture": "amd64",
    }
    return ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]


def loader(folder: Path) -> Path:
    return next(folder.glob("**/ld-linux-x86-64.so.2"))


def library_path(folder: Path) -> str:
    return ":".join(sorted({str(file.parent) for file in folder.glob("**/lib*.so.*") if "share" not in file.parts}))


def run(arguments: list[str], complaint: str, cwd: Path | None = None) -> str:
    """A program's output. Raises PerfAnalyzerError with the complaint and what the program said."""
    result = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise PerfAnalyzerError(f"{complaint}: {' '.join(said[-3:])}; {REMEDY}")
    return result.stdout


def main(
    context: typer.Context,
    print_command: Annotated[bool, typer.Option("--print-command", help="Print how to start it, and end.")] = False,
) -> None:
    """Run perf_analyzer with the arguments after `--`; it is fetched at the first call."""
    console = Console(stderr=True)
    try:
        with console.status("looking for perf_analyzer") as status:
            words = command(load().cache_dir, status.update)
    except PerfAnalyzerError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    if print_command:
        print(shlex.join(words))
    else:
        os.execv(words[0], [*words, *context.args])


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, rich_markup_mode=None)
    program.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    program()
