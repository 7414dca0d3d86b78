"""The corpus on disk: shards of tokens, and beside them the target's features of the same rows.

A token shard is a small safetensors file with the tensors of `Shard`. Its features are a file of the same name in
another folder: `features` [rows, F] bfloat16, one row less than tokens for each sequence, because the last token of
an answer is never fed. (bfloat16: rows at position 0 are attention sinks far beyond the range that float16 resolves.)
Features can always be computed again from the tokens; only the tokens are shipped.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch_file

from python_backend.engine import TargetEngine
from python_backend.files import appearing
from python_backend.protocol import Array, Part, TargetStep, row_starts
from python_backend.settings import WORKLOADS, Workload
from training.corpus.sampler import Written
from training.corpus.stops import STOPS

MANIFEST = "manifest.json"
PREFILL_ROWS = 512  # rows of a pass that computes features again


@dataclass(frozen=True, eq=False)
class Shard:
    """Token columns of S sequences with N tokens in all; field names are tensor names."""

    tokens: npt.NDArray[np.uint16]  # [N]
    length: npt.NDArray[np.int32]  # [S] tokens of each sequence
    response_start: npt.NDArray[np.int32]  # [S] where the last answer begins, within the sequence
    domain: npt.NDArray[np.uint8]  # [S] index into WORKLOADS
    temperature: npt.NDArray[np.float32]  # [S]
    seed: npt.NDArray[np.uint64]  # [S] of the engine's noise
    magpie: npt.NDArray[np.bool_]  # [S] the model wrote the user turn itself
    stop: npt.NDArray[np.uint8]  # [S] index into STOPS

    def __len__(self) -> int:
        return len(self.length)

    @property
    def response_length(self) -> npt.NDArray[np.int32]:
        """[S] tokens of the last answer."""
        return self.length - self.response_start

    @property
    def row_starts(self) -> npt.NDArray[np.int64]:
        """[S + 1] where each sequence's features begin."""
        return row_starts(self.length - 1)

    def ids(self) -> list[npt.NDArray[np.int64]]:
        """Token ids of each sequence."""
        return np.split(self.tokens.astype(np.int64), np.cumsum(self.length)[:-1])

    def sample(self, i: int, features: torch.Tensor) -> Sample:
        """Sequence i with its features."""
        start = int(self.length[:i].sum())
        return Sample(
            ids=self.tokens[start : start + self.length[i]].astype(np.int64),
            response_start=int(self.response_start[i]),
            domain=WORKLOADS[self.domain[i]],
            temperature=float(self.temperature[i]),
            seed=int(self.seed[i]),
            features=features,
        )

    def take(self, chosen: npt.NDArray[np.int64]) -> Shard:
        """These sequences alone, in this order."""
        ids = self.ids()
        tokens = np.concatenate([ids[i] for i in chosen]).astype(np.uint16)
        columns = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "tokens"}
        return Shard(tokens=tokens, **columns)

    def save(self, file: Path) -> None:
        """Appears under its name only when it is whole."""
        with appearing(file) as part:
            save_file({f.name: getattr(self, f.name) for f in fields(self)}, part)

    @classmethod
    def load(cls, file: Path) -> Shard:
        return cls(**load_file(file))


def join(shards: Sequence[Shard]) -> Shard:
    """All their sequences as one shard."""
    return Shard(**{f.name: np.concatenate([getattr(s, f.name) for s in shards]) for f in fields(Shard)})


@dataclass(frozen=True, eq=False)
class Sample:
    """One sequence for training or evaluation."""

    ids: npt.NDArray[np.int64]  # [n]
    response_start: int
    domain: Workload
    temperature: float
    seed: int
    features: torch.Tensor  # [n - 1, F] bfloat16, captured at positions 0 to n - 2


def to_shard(written: Sequence[Written], vocabulary_size: int) -> Shard:
    """Raises ValueError where token ids need more than 16 bits."""
    if vocabulary_size > 1 << 16:
        raise ValueError(f"the target has {vocabulary_size} tokens, limit {1 << 16}: a corpus stores 16 bits a token")
    requests = [w.request for w in written]
    return Shard(
        tokens=np.array([t for w in written for t in w.ids], dtype=np.uint16),
        length=np.array([len(w.ids) for w in written], dtype=np.int32),
        response_start=np.array([w.response_start for w in written], dtype=np.int32),
        domain=np.array([WORKLOADS.index(r.domain) for r in requests], dtype=np.uint8),
        temperature=np.array([r.temperature for r in requests], dtype=np.float32),
        seed=np.array([r.seed for r in requests], dtype=np.uint64),
        magpie=np.array([r.magpie for r in requests], dtype=np.bool_),
        stop=np.array([STOPS.index(w.stop) for w in written], dtype=np.uint8),
    )


def save_features(features: torch.Tensor, file: Path) -> None:
    """features: [rows, F] bfloat16."""
    with appearing(file) as part:
        save_torch_file({"features": features}, part)


class Corpus:
    """The shards under one name, in order.

    engine: computes features that are not on disk, and keeps them there. Without it, a missing file is a
    FileNotFoundError.
    """

    def __init__(self, cache_dir: Path, name: str, engine: TargetEngine | None = None) -> None:
        self.folder = corpus_folder(cache_dir, name)
        self.features_folder = features_folder(cache_dir, name)
        self.engine = engine
        self.files = sorted(self.folder.glob("shard-*.safetensors"))
        if not self.files:
            raise FileNotFoundError(f"'{self.folder}' holds no shard: run `python -m training.corpus.synthesize`")

    def shards(self) -> Iterator[Shard]:
        """Tokens alone."""
        return (Shard.load(file) for file in self.files)

    def __iter__(self) -> Iterator[Sample]:
        for index in range(len(self.files)):
            yield from self.samples(index)

    def samples(self, index: int) -> Iterator[Sample]:
        """Sequences of one shard; each one's features are read when it is its turn."""
        shard = Shard.load(self.files[index])
        starts = shard.row_starts
        with safe_open(self.features_file(index, shard), framework="pt") as stored:
            features = stored.get_slice("features")
            for i in range(len(shard)):
                yield shard.sample(i, features[int(starts[i]) : int(starts[i + 1])])

    def features_file(self, index: int, shard: Shard) -> Path:
        """Where a shard's features are, computed now if they are not there."""
        file = self.features_folder / self.files[index].name
        if not file.is_file():
            if self.engine is None:
                raise FileNotFoundError(f"'{file}' is missing: give an engine that computes it from the tokens")
            save_features(compute_features(self.engine, shard.ids()), file)
        return file


def corpus_folder(cache_dir: Path, name: str) -> Path:
    return cache_dir / "training" / "corpus" / name


def features_folder(cache_dir: Path, name: str) -> Path:
    return cache_dir / "training" / "features" / name


def compute_features(engine: TargetEngine, sequences: Sequence[Array]) -> torch.Tensor:
    """[rows, F] bfloat16: prefill passes over all but the last token of each sequence."""
    about = engine.describe()
    rows = row_starts(np.array([len(ids) - 1 for ids in sequences]))
    features = torch.empty(int(rows[-1]), about.feature_size, dtype=torch.bfloat16)
    waiting, first = list(range(len(sequences))), 0
    while waiting:
        batch = [waiting.pop(0)]
        while (
            waiting
            and len(batch) < about.slots
            and sum(len(sequences[i]) for i in (*batch, waiting[0])) <= PREFILL_ROWS + len(batch)
        ):
            batch.append(waiting.pop(0))
        captured = engine.step(_prefill([sequences[i][:-1] for i in batch])).features
        features[first : first + len(captured)] = torch.from_numpy(captured)
        first += len(captured)
    return features


def _prefill(prompts: list[Array]) -> TargetStep:
    return TargetStep.of([Part(slot, 0, prompt.tolist(), sample=False) for slot, prompt in enumerate(prompts)])


def pack(folder: Path, archive: Path) -> None:
    """Token shards and manifest as one compressed file, to be shipped."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_LZMA) as packed:
        for file in (folder / MANIFEST, *sorted(folder.glob("shard-*.safetensors"))):
            packed.write(file, file.name)


def unpack(archive: Path, folder: Path) -> None:
    """The inverse of pack."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
