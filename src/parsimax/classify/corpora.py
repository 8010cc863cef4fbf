"""The texts of a run: read, counted, and turned into numbers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch

from parsimax._runs import files
from parsimax._runs.display import Display
from parsimax._runs.errors import TrainingError

from .batches import Encoded, encode
from .config import Config
from .examples import Examples, check_some, label_names
from .run import read
from .vocabulary import Vocabulary


@dataclass(frozen=True)
class Corpora:
    """All texts of a run, as numbers."""

    vocabulary: Vocabulary
    train: Encoded
    validation: Encoded
    test: Encoded | None
    vectors: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the words, numbers and labels that training and validation see."""
        whole = hashlib.sha256(f"{self.vocabulary.fingerprint} {self.vectors}".encode())
        for part in (self.train, self.validation):
            lengths = torch.tensor([len(text) for text in part.texts])
            for numbers in (lengths, torch.cat(part.texts), part.labels):
                whole.update(numbers.numpy().astype("<i8").tobytes())
        return whole.hexdigest()

    @classmethod
    def read(cls, config: Config, display: Display) -> Corpora:
        """Read the files of a config and learn the vocabulary from those of training.

        Raises:
            TrainingError: training has one label, or validation cannot be measured as asked for.
            DataError: rows that cannot be used, or none left.
        """
        data = config.data
        found: dict[str, Examples] = {}
        for name, paths in (
            ("train", data.train),
            ("validation", data.validation),
            ("test", data.test),
        ):
            if not paths:
                continue
            with display.counting(f"reading {name} texts") as count:
                found[name] = read(config, paths, progress=count)
            check_some(found[name], f"data.{name}")
        names = label_names(found["train"].examples)
        if len(names) < 2:
            raise TrainingError(
                f"data.train has one label, {names[0]!r}, in all {len(found['train']):,} texts; "
                "a classifier needs at least two"
            )
        vocabulary = Vocabulary.of(
            (example.words for example in found["train"]),
            names,
            min_documents=data.min_documents,
            max_words=data.max_words,
        )
        encoded = {name: encode(texts.examples, vocabulary) for name, texts in found.items()}
        for name, texts in found.items():
            display.line(f"{name}: {_describe(texts, encoded[name], names)}")
        if config.training.metric == "auc":
            seen = int(encoded["validation"].labels.bincount().count_nonzero())
            if seen < (2 if len(names) == 2 else len(names)):
                raise TrainingError(
                    f"training.metric: the AUC of data.validation is undefined, because it has "
                    f"texts of {seen} of {len(names)} classes only; take accuracy, f1 or loss"
                )
        vectors = (
            "" if data.vectors is None else files.fingerprint([files.check_file(data.vectors)])
        )
        return cls(
            vocabulary, encoded["train"], encoded["validation"], encoded.get("test"), vectors
        )


def _describe(texts: Examples, encoded: Encoded, names: tuple[str, ...]) -> str:
    counts = torch.bincount(encoded.labels, minlength=len(names)).tolist()
    tokens = sum(len(text) for text in encoded.texts)
    of_classes = ", ".join(f"{n:,} {name}" for n, name in zip(counts[:8], names, strict=False))
    remarks = texts.remarks()
    return f"{len(texts):,} texts ({of_classes}), {tokens / len(texts):.1f} tokens on average" + (
        f"; left out: {remarks}" if remarks else ""
    )
