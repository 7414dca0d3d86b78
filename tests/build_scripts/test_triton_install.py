"""What the server needs is checked before it starts, and each complaint says what to do."""

from __future__ import annotations

import shutil
import socket
import sysconfig
from collections import namedtuple
from importlib import metadata, util
from pathlib import Path

import pytest

from build_scripts import triton_install
from build_scripts.triton_install import Install, PreflightError, find_install

Usage = namedtuple("Usage", "total used free")


def test_a_missing_wheel_is_named(monkeypatch):
    monkeypatch.setattr(triton_install, "find_spec", lambda name: None)
    with pytest.raises(PreflightError, match=r"'nvidia-pytriton' is not installed in .*make setup"):
        find_install()


def test_a_python_without_stub_is_told_which_ones_there_are():
    with pytest.raises(PreflightError, match=r"no Python backend stub for Python 3\.99, only for 3\.8, .*3\.11"):
        find_install().stub("3.99")


@pytest.fixture
def config_vars(monkeypatch):
    """Lets a test change what Python says about how it was built."""

    def change(**values):
        real = sysconfig.get_config_var
        monkeypatch.setattr(sysconfig, "get_config_var", lambda name: values.get(name, real(name)))

    return change


def test_a_python_without_shared_library_is_refused(config_vars):
    config_vars(INSTSONAME="libpython3.11.a")
    with pytest.raises(PreflightError, match=r"without a shared library.*--enable-shared"):
        triton_install.python_library()


def test_a_missing_libpython_is_named_with_its_package(config_vars, tmp_path):
    config_vars(LIBDIR=str(tmp_path))
    with pytest.raises(
        PreflightError, match=rf"{tmp_path}/libpython3\.11\.so.* is missing: install it .*libpython3\.11"
    ):
        triton_install.python_library()


@pytest.mark.parametrize("version", ["2.0.0", "2.3.1", "10.0"])
def test_numpy_2_is_refused(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(PreflightError, match=rf"numpy is {version}, .* numpy < 2"):
        triton_install.check_numpy()


def test_a_small_shared_memory_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(64 * 2**20, 24 * 2**20, 40 * 2**20))
    with pytest.raises(PreflightError, match=r"/dev/shm has 40 MiB free, the server needs 64 MiB.*--shm-size"):
        triton_install.check_shm()


def test_a_taken_port_is_named_with_its_option():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=rf"grpc port {port} on 127.0.0.1 cannot be used: .*--grpc-port"):
            triton_install.check_port("grpc", "127.0.0.1", port)
    triton_install.check_port("grpc", "127.0.0.1", port)


def test_free_ports_differ_and_can_be_used():
    ports = triton_install.free_ports("127.0.0.1", 3)
    assert len(set(ports)) == 3
    for port in ports:
        triton_install.check_port("http", "127.0.0.1", port)


@pytest.fixture
def wheel(tmp_path):
    """A wheel with a backend and a stub for this Python."""
    root = tmp_path / "tritonserver"
    (root / "backends" / "python").mkdir(parents=True)
    (root / "backends" / "python" / "libtriton_python.so").write_text("backend")
    stub = root / "python_backend_stubs" / triton_install.PYTHON
    stub.mkdir(parents=True)
    (stub / "triton_python_backend_stub").write_text("stub")
    return Install(root, tmp_path / "libs", "9.9")


def test_the_backend_is_laid_out_with_its_stub_once(wheel, tmp_path):
    folder = wheel.backends(tmp_path / "cache")
    assert {p.name for p in (folder / "python").iterdir()} == {"libtriton_python.so", "triton_python_backend_stub"}
    inode = folder.stat().st_ino
    assert wheel.backends(tmp_path / "cache").stat().st_ino == inode
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_the_interpreters_own_library_comes_before_the_wheels(wheel):
    folders = wheel.environment()["LD_LIBRARY_PATH"].split(":")
    assert folders[0] == sysconfig.get_config_var("LIBDIR")
    assert folders[1] == str(wheel.libraries)


def test_the_installed_wheel_is_complete():
    install = find_install()
    assert install.binary.is_file()
    assert install.libraries.is_dir()
    assert install.stub(triton_install.PYTHON).is_file()
    assert util.find_spec("pytriton") is not None
    assert Path(triton_install.python_library()).is_file()
