"""perf_analyzer is fetched once, runs natively where it can, and else through libraries of its own."""

from __future__ import annotations

import platform
import shutil

import pytest

from build_scripts import perf_analyzer
from build_scripts.perf_analyzer import PerfAnalyzerError, command


@pytest.fixture
def fetched(monkeypatch):
    """The downloads, recorded and replaced by empty files."""
    done: list[str] = []

    def wheel(folder):
        (folder / "perf_analyzer" / "bin").mkdir(parents=True)
        (folder / "perf_analyzer" / "bin" / "perf_analyzer").touch()
        done.append("wheel")

    def libraries(folder):
        for name in ("usr/lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu/libc.so.6", "usr/share/gdb/libx.so.1"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        done.append("libraries")

    monkeypatch.setattr(perf_analyzer, "fetch_wheel", wheel)
    monkeypatch.setattr(perf_analyzer, "fetch_libraries", libraries)
    return done


def test_on_a_new_system_it_runs_natively(monkeypatch, fetched, tmp_path):
    monkeypatch.setattr(perf_analyzer, "glibc", lambda: (2, 38))
    (binary,) = command(tmp_path)
    assert binary.endswith("wheel/perf_analyzer/bin/perf_analyzer")
    assert fetched == ["wheel"]


def test_on_an_older_system_it_runs_through_a_newer_loader(monkeypatch, fetched, tmp_path):
    monkeypatch.setattr(perf_analyzer, "glibc", lambda: (2, 36))
    loader, option, path, binary = command(tmp_path)
    assert loader.endswith("usr/lib64/ld-linux-x86-64.so.2")
    assert option == "--library-path"
    assert [folder.split("/trixie/")[1] for folder in path.split(":")] == ["usr/lib/x86_64-linux-gnu"]
    assert binary.endswith("bin/perf_analyzer")


def test_it_is_fetched_once(monkeypatch, fetched, tmp_path):
    monkeypatch.setattr(perf_analyzer, "glibc", lambda: (2, 36))
    assert command(tmp_path) == command(tmp_path)
    assert fetched == ["wheel", "libraries"]


def test_a_download_that_breaks_leaves_nothing_behind(monkeypatch, tmp_path):
    def broken(folder):
        (folder / "half").touch()
        raise PerfAnalyzerError("no network")

    monkeypatch.setattr(perf_analyzer, "fetch_wheel", broken)
    with pytest.raises(PerfAnalyzerError, match="no network"):
        command(tmp_path)
    assert list((tmp_path / "perf_analyzer" / perf_analyzer.VERSION).iterdir()) == []


def test_another_machine_is_refused_with_a_way_out(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(PerfAnalyzerError, match=r"Linux x86_64, this is Linux aarch64: .*--perf-analyzer"):
        command(tmp_path)


def test_an_old_system_without_apt_is_refused_with_a_way_out(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(PerfAnalyzerError, match=r"needs glibc 2\.38, .* is no Debian: .*--perf-analyzer"):
        perf_analyzer.fetch_libraries(tmp_path)


def test_the_mirror_is_the_one_of_the_systems_own_sources(monkeypatch):
    lists = (
        "contrib bookworm http://one/debian/\nmain bookworm-updates http://two/\nmain bookworm http://three/debian/\n"
    )
    monkeypatch.setattr(perf_analyzer, "run", lambda arguments, complaint: lists)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"VERSION_CODENAME": "bookworm"})
    assert perf_analyzer.debian_mirror() == "http://three/debian/"
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"VERSION_CODENAME": "jammy"})
    with pytest.raises(PerfAnalyzerError, match="no package list of 'jammy'"):
        perf_analyzer.debian_mirror()


def test_apt_verifies_and_keeps_its_state_to_itself(tmp_path):
    words = perf_analyzer.apt_command(tmp_path, "http://mirror/debian/")
    source = (tmp_path / "sources.list").read_text()
    assert source == f"deb [signed-by={perf_analyzer.KEYRING}] http://mirror/debian/ trixie main\n"
    places = [word.split("=", 1)[1] for word in words if word.startswith("-oDir::")]
    assert all(place == "-" or place.startswith(str(tmp_path)) for place in places)
    assert not any("allow" in word.lower() for word in words)
