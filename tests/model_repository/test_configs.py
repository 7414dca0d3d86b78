"""The models' configurations say what the code says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import triton_to_np_dtype

from build_scripts import write_configs
from python_backend.coordinator.foreign import FOREIGN
from python_backend.coordinator.request import ALIASES, Fields
from python_backend.protocol import (
    DESCRIPTION,
    DrafterResult,
    DrafterStep,
    PrefixHit,
    PrefixQuery,
    TargetResult,
    TargetStep,
)
from python_backend.settings import ROOT

REPOSITORY = ROOT / "model_repository"
MODELS = sorted(folder.name for folder in REPOSITORY.iterdir())
ENGINES = [(name, (DrafterStep,), (DrafterResult,)) for name in MODELS if name.startswith("drafter_")]
ENGINES.append(("target", (TargetStep, PrefixQuery, DrafterStep), (TargetResult, PrefixHit, DrafterResult)))


def config(name):
    return text_format.Parse((REPOSITORY / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def numpy_types(tensors):
    names = {t.name: model_config_pb2.DataType.Name(t.data_type).removeprefix("TYPE_") for t in tensors}
    return {name: np.dtype(triton_to_np_dtype("BYTES" if t == "STRING" else t)) for name, t in names.items()}


def columns(messages):
    return {f.name: f.metadata["dtype"] for message in messages for f in dataclasses.fields(message)}


@pytest.mark.parametrize(("name", "asked", "answers"), ENGINES)
def test_an_engines_tensors_are_the_columns_of_the_step_protocol(name, asked, answers):
    parsed = config(name)
    assert numpy_types(parsed.input) == columns(asked)
    assert numpy_types(parsed.output) == columns(answers) | {DESCRIPTION: np.dtype(object)}
    assert all(tensor.optional for tensor in parsed.input)


@pytest.mark.parametrize(("name", "asked", "answers"), ENGINES)
def test_an_engine_takes_the_whole_batch_in_one_call_from_one_instance(name, asked, answers):
    parsed = config(name)
    assert parsed.max_batch_size == 0
    assert not parsed.model_transaction_policy.decoupled
    assert [group.count for group in parsed.instance_group] == [1]


def test_the_coordinators_inputs_are_the_fields_of_a_request():
    names = {tensor.name for tensor in config("angelspec").input}
    only_a_parameter = {"timeout"}  # as a tensor it would stand beside Triton's own
    assert names == (Fields.model_fields.keys() | ALIASES.keys() | FOREIGN.keys()) - only_a_parameter
    assert all(tensor.optional for tensor in config("angelspec").input)


def test_the_twin_has_the_same_tensors_without_a_batch_axis():
    streaming, twin = config("angelspec"), config("angelspec_infer")
    assert list(twin.input) == list(streaming.input)
    assert list(twin.output) == list(streaming.output)
    assert (streaming.max_batch_size, twin.max_batch_size) == (1, 0)
    assert streaming.model_transaction_policy.decoupled
    assert not twin.model_transaction_policy.decoupled


def test_text_is_the_first_output():
    assert config("angelspec").output[0].name == "text_output"


def test_the_alias_has_the_tensors_of_the_coordinator():
    alias, coordinator = config("tensorrt_llm_bls"), config("angelspec")
    assert (list(alias.input), list(alias.output)) == (list(coordinator.input), list(coordinator.output))
    assert alias.model_transaction_policy.decoupled


def test_an_ensemble_is_the_coordinator_by_another_name():
    ensemble, coordinator = config("ensemble"), config("angelspec")
    (step,) = ensemble.ensemble_scheduling.step
    assert (ensemble.platform, ensemble.max_batch_size, step.model_name) == ("ensemble", 1, "angelspec")
    assert list(ensemble.input) == list(coordinator.input)
    assert {tensor.name for tensor in coordinator.output} - {tensor.name for tensor in ensemble.output} == {
        "speculation"
    }
    for maps, tensors in ((step.input_map, ensemble.input), (step.output_map, ensemble.output)):
        assert dict(maps) == {tensor.name: tensor.name for tensor in tensors}


@pytest.mark.parametrize(
    ("path", "text"), write_configs.files().items(), ids=lambda value: getattr(value, "parent", "")
)
def test_what_is_checked_in_is_what_the_table_gives(path, text):
    assert path.read_text() == text, f"run `{write_configs.COMMAND}`"


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"ensemble"}))
def test_a_folder_is_named_as_its_model_and_its_code_only_wires(name):
    assert config(name).name == name
    assert len((Path(REPOSITORY) / name / "1" / "model.py").read_text().splitlines()) <= 40


def test_every_drafter_of_the_default_settings_has_a_model():
    from python_backend.settings import Settings

    assert set(Settings.model_fields["drafters"].default) <= set(MODELS)
