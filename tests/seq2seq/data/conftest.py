"""A small corpus that most tests of data share."""

from __future__ import annotations

import random

import pytest

from parsimax.seq2seq.data import corpus
from parsimax.seq2seq.data.readers import read
from parsimax.seq2seq.data.textcodec import TextCodec


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """Inflection tables of three languages with lemmas of very different lengths."""
    folder = tmp_path_factory.mktemp("tables")
    draw = random.Random(0)
    for language, alphabet in (("latin", "abc d"), ("greek", "αβγ"), ("quenya", "a\u0301xyz")):
        rows = []
        for _ in range(67):
            lemma = "x" + "".join(draw.choices(alphabet, k=draw.randrange(12)))
            tags = draw.sample(["V", "N", "SG", "PL", "x"], k=draw.randrange(1, 4))
            rows.append(f"{lemma}\t{lemma[::-1] * draw.randrange(1, 3)}\t{';'.join(tags)}\n")
        (folder / f"{language}-train").write_text("".join(rows), "utf-8")
    return folder


@pytest.fixture(scope="session")
def codec(tables):
    return TextCodec.learn(read("inflection", tables))


@pytest.fixture(scope="session")
def encoded(tables, codec, tmp_path_factory):
    """201 examples."""
    return corpus.build(
        read("inflection", tables), codec, tmp_path_factory.mktemp("data") / "train"
    )
