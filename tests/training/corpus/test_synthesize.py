from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.support.toy import ToyTarget
from tests.training.writing import CHAT, NEVER, request
from training.corpus.report import Report
from training.corpus.sampler import Sampler
from training.corpus.shards import MANIFEST, Corpus, corpus_folder
from training.corpus.synthesize import Job, Writer, count

JOB = Job(name="train", seed=1, held_out=False, tokens=1500, shard_tokens=500, prompts=0)


def endless(index):
    """Requests of a shard of the toy."""
    random = np.random.default_rng([JOB.seed, index])
    while True:
        prompt = (11, 12, *random.integers(20, 90, 3).tolist(), 13, 14)
        yield request(prompt, temperature=float(random.choice([0.0, 1.0])), seed=int(random.integers(1 << 63)))


class StoppingReport(Report):
    """Interrupts the run after so many passes."""

    def __init__(self, passes):
        super().__init__(Console(quiet=True), 0)
        self.passes = passes

    def step(self, tokens, rows):
        super().step(tokens, rows)
        self.passes -= 1
        if self.passes < 0:
            raise KeyboardInterrupt


def run(cache_dir, passes=1_000_000, job=JOB):
    engine = ToyTarget(feature_size=4)
    with StoppingReport(passes) as report:
        Writer(job, cache_dir, engine, Sampler(engine, CHAT, (NEVER,), frozenset()), endless).run(report)
    return report


def stored(cache_dir):
    """Contents of all files of tokens and features, by name."""
    files = (cache_dir / "training").rglob("*.safetensors")
    return {str(f.relative_to(cache_dir)): f.read_bytes() for f in files}


def test_a_run_that_was_killed_goes_on_with_the_same_shards(tmp_path):
    run(tmp_path / "whole")
    expected = stored(tmp_path / "whole")
    assert len(expected) == 2 * 3
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", passes=100)
    assert 0 < len(stored(tmp_path / "killed")) < len(expected)
    run(tmp_path / "killed")
    assert stored(tmp_path / "killed") == expected


def test_a_shard_that_is_there_is_not_written_again(tmp_path):
    run(tmp_path)
    assert run(tmp_path).tokens == 0


def test_a_larger_corpus_begins_with_the_smaller_one(tmp_path):
    run(tmp_path / "small")
    run(tmp_path / "large", job=replace(JOB, tokens=2500))
    small, large = stored(tmp_path / "small"), stored(tmp_path / "large")
    assert len(large) > len(small)
    assert small.items() <= large.items()


def test_features_without_their_tokens_do_not_count(tmp_path):
    run(tmp_path)
    expected = stored(tmp_path)
    (corpus_folder(tmp_path, "train") / "shard-0002.safetensors").unlink()
    run(tmp_path)
    assert stored(tmp_path) == expected


def test_the_manifest_counts_what_the_shards_hold(tmp_path):
    run(tmp_path)
    manifest = json.loads((corpus_folder(tmp_path, "train") / MANIFEST).read_text())
    counted = sum((count(s) for s in Corpus(tmp_path, "train").shards()), start=Counter())
    assert manifest["counts"] == dict(counted)
    assert manifest["shards"] == 3
    assert manifest["job"]["seed"] == 1
    assert manifest["target"]["weights_sha256"] == "toy"
    assert manifest["counts"]["response_tokens"] >= JOB.tokens
    assert manifest["counts"]["response_tokens"] == manifest["counts"]["chat_response_tokens"]


def test_writers_that_share_the_work_write_what_one_would(tmp_path):
    run(tmp_path / "one")
    for writer in (1, 0):
        engine = ToyTarget(feature_size=4)
        with Report(Console(quiet=True), 0) as report:
            built = Writer(JOB, tmp_path / "two", engine, Sampler(engine, CHAT, (NEVER,), frozenset()), endless)
            built.run(report, writer, 2)
    assert stored(tmp_path / "two") == stored(tmp_path / "one")
    manifests = [(corpus_folder(tmp_path / name, "train") / MANIFEST).read_text() for name in ("one", "two")]
    assert manifests[0] == manifests[1]
