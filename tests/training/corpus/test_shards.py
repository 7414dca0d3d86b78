from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from python_backend.settings import WORKLOADS
from tests.support.checkpoints import load_engine
from tests.support.openvino_targets import load_openvino
from tests.training.writing import request, write
from training.corpus.shards import (
    MANIFEST,
    Corpus,
    Shard,
    compute_features,
    corpus_folder,
    features_folder,
    pack,
    save_features,
    to_shard,
    unpack,
)

LAYERS = (0, 2, 3)


def asked(count):
    return [
        request(
            tuple(np.random.default_rng(i).integers(5, 90, 4 + i % 9).tolist()),
            domain=WORKLOADS[i % 3],
            temperature=0.8 * (i % 2),
            seed=(1 << 62) + i,
            cap=10 + i,
        )
        for i in range(count)
    ]


def store(written, cache_dir, name="train", shard="shard-0000", vocabulary=300):
    """As a shard with its features."""
    save_features(torch.cat([w.features for w in written]), features_folder(cache_dir, name) / f"{shard}.safetensors")
    to_shard(written, vocabulary).save(corpus_folder(cache_dir, name) / f"{shard}.safetensors")


def test_a_corpus_gives_back_what_was_written(tmp_path):
    first, second = write(asked(7)), write(asked(12)[7:])
    store(first, tmp_path)
    store(second, tmp_path, shard="shard-0001")
    samples = list(Corpus(tmp_path, "train"))
    for sample, written in zip(samples, first + second, strict=True):
        assert sample.ids.dtype == np.int64
        assert tuple(sample.ids) == written.ids
        assert sample.response_start == written.response_start
        assert sample.domain == written.request.domain
        assert sample.temperature == pytest.approx(written.request.temperature)
        assert torch.equal(sample.features, written.features)


def test_a_shard_keeps_how_each_sequence_was_made(tmp_path):
    written = write(asked(9))
    store(written, tmp_path)
    (shard,) = Corpus(tmp_path, "train").shards()
    assert shard.seed.tolist() == [w.request.seed for w in written]
    assert shard.magpie.tolist() == [w.request.magpie for w in written]
    assert shard.response_length.tolist() == [w.response_length for w in written]


@pytest.mark.parametrize("load", [load_engine, load_openvino])
def test_features_computed_from_the_tokens_equal_those_captured_while_writing(tiny_llama, tmp_path, load):
    written = write(asked(12), load(tiny_llama, slots=5, feature_layers=LAYERS), end_ids=(2,))
    store(written, tmp_path)
    captured = [s.features for s in Corpus(tmp_path, "train")]
    (features_folder(tmp_path, "train") / "shard-0000.safetensors").unlink()
    engine = load(tiny_llama, slots=3, feature_layers=LAYERS)
    for sample, expected in zip(Corpus(tmp_path, "train", engine), captured, strict=True):
        assert expected.shape == (len(sample.ids) - 1, 3 * 48)
        assert torch.allclose(sample.features.float(), expected.float(), rtol=0.02, atol=0.02)


def test_computed_features_are_kept(tiny_llama, tmp_path):
    store(write(asked(3), load_engine(tiny_llama, feature_layers=LAYERS)), tmp_path)
    file = features_folder(tmp_path, "train") / "shard-0000.safetensors"
    file.unlink()
    list(Corpus(tmp_path, "train", load_engine(tiny_llama, feature_layers=LAYERS)))
    assert file.is_file()
    list(Corpus(tmp_path, "train"))


def test_without_an_engine_missing_features_are_named(tmp_path):
    store(write(asked(3)), tmp_path)
    file = features_folder(tmp_path, "train") / "shard-0000.safetensors"
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard-0000\.safetensors' is missing: give an engine"):
        list(Corpus(tmp_path, "train"))


def test_a_corpus_without_shards_says_what_to_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no shard: run `python -m training\.corpus\.synthesize`"):
        Corpus(tmp_path, "train")


def test_a_longer_sequence_than_a_pass_is_computed_as_well(tiny_llama):
    engine = load_engine(tiny_llama, feature_layers=LAYERS)
    sequences = [np.random.default_rng(i).integers(5, 300, n) for i, n in enumerate((250, 2, 250, 250, 17))]
    together = compute_features(engine, sequences)
    alone = torch.cat([compute_features(engine, [s]) for s in sequences])
    assert len(together) == sum(len(s) - 1 for s in sequences)
    assert torch.allclose(together.float(), alone.float(), rtol=0.02, atol=0.02)


def test_what_was_packed_is_unpacked(tmp_path):
    store(write(asked(5)), tmp_path)
    store(write(asked(8)), tmp_path, shard="shard-0001")
    folder = corpus_folder(tmp_path, "train")
    (folder / MANIFEST).write_text("{}\n")
    pack(folder, tmp_path / "data" / "corpus.zip")
    unpack(tmp_path / "data" / "corpus.zip", tmp_path / "again")
    assert (tmp_path / "again" / MANIFEST).read_text() == "{}\n"
    for file in sorted(folder.glob("*.safetensors")):
        before, after = Shard.load(file), Shard.load(tmp_path / "again" / file.name)
        for field in fields(Shard):
            assert np.array_equal(getattr(before, field.name), getattr(after, field.name))


def test_a_vocabulary_beyond_16_bits_is_refused():
    with pytest.raises(ValueError, match="151936 tokens, limit 65536"):
        to_shard(write(asked(1)), 151936)
