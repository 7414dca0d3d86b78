"""`target.quantization: auto` is what this CPU is fast at and exact; what cannot be exact is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from python_backend.engines import quantization
from python_backend.engines.quantization import in_effect, int8_flags
from python_backend.settings import ROOT, Settings, TargetSettings
from tests.support.openvino_targets import load_openvino

CPUS = {
    "flags\t\t: fpu avx2 avx512f avx512_vnni amx_bf16 amx_int8": ("avx512_vnni", "amx_int8"),
    "flags\t\t: fpu avx2 avx512f avx512_vnni": ("avx512_vnni",),
    "flags\t\t: fpu avx2 fma avx_vnni": (),
    "model name\t: avx512_vnni in a name\nflags\t\t: fpu avx2": (),
    "": (),
}


@pytest.fixture(params=CPUS, ids=lambda text: text.split(":")[-1].strip() or "nothing")
def cpuinfo(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\n{request.param}\n\nprocessor\t: 1\n{request.param}\n")
    return file


def test_products_of_8_bit_integers_are_read_from_the_flags(cpuinfo: Path) -> None:
    text = cpuinfo.read_text()
    assert int8_flags(cpuinfo) == next(found for cpu, found in CPUS.items() if text.split("\n\n")[0].endswith(cpu))


def test_a_machine_without_the_file_has_none(tmp_path: Path) -> None:
    assert int8_flags(tmp_path / "cpuinfo") == ()


def test_auto_is_8_bit_and_invariant_where_the_cpu_has_them_and_exact_elsewhere(
    cpuinfo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=quantization.__name__)
    fast = bool(int8_flags(cpuinfo))
    for invariant in (False, True):
        target = in_effect(TargetSettings(engine="openvino", invariant=invariant), cpuinfo)
        assert (target.quantization, target.invariant) == (("int8-dynamic", True) if fast else ("exact", invariant))
        assert f"target.quantization auto: {target.quantization}" in caplog.messages[-1]
        TargetSettings.model_validate(target.model_dump())  # a combination that could have been set


def test_auto_is_exact_for_other_engines_and_what_is_set_stays(cpuinfo: Path) -> None:
    assert in_effect(TargetSettings(engine="torch"), cpuinfo).quantization == "exact"
    for target in (
        TargetSettings(engine="openvino", quantization="exact"),
        TargetSettings(engine="openvino", quantization="int8-dynamic", invariant=True),
    ):
        assert in_effect(target, cpuinfo) == target


@pytest.mark.parametrize("flags", ["avx2", "avx2 avx512_vnni"])
def test_an_engine_describes_what_is_in_effect(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    monkeypatch.setattr(quantization, "CPUINFO", tmp_path / "cpuinfo")
    expected = "int8-dynamic, invariant" if "vnni" in flags else "exact"
    assert load_openvino(tiny_llama, quantization="auto").describe().dtype == expected


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            {"engine": "openvino", "quantization": "int8-dynamic"},
            r"set target\.invariant true, or target\.quantization",
        ),
        (
            {"engine": "torch", "quantization": "int8-dynamic"},
            r"needs target\.engine openvino, it is torch: set target",
        ),
        ({"engine": "stock", "invariant": True}, r"needs target\.engine openvino, it is stock: set target"),
        ({"engine": "openvino", "quantization": "int4"}, r"'auto', 'exact' or 'int8-dynamic'"),
        (
            {"engine": "openvino", "weights": "exact"},
            r"target\.weights is called target\.quantization now: set that to exact",
        ),
    ],
)
def test_what_cannot_keep_the_promise_is_refused_with_what_to_set(target: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TargetSettings.model_validate(target)


def test_a_variable_of_the_old_name_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANGELSPEC_TARGET__WEIGHTS", "int8-dynamic")
    with pytest.raises(ValidationError, match=r"set that to int8-dynamic"):
        Settings()


@pytest.mark.parametrize("file", ["angelspec.yaml", "angelspec-drafters.yaml"])
def test_the_shipped_settings_say_auto(file: str) -> None:
    assert yaml.safe_load((ROOT / file).read_text())["target"]["quantization"] == "auto"
