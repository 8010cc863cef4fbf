"""Mappings as text: what a config may say, and what it is told when it says something else."""

from __future__ import annotations

import pytest

import parsimax as px
from parsimax.mappings import parse, registry


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("softmax", px.mappings.Softmax()),
        ("sparsemax()", px.mappings.Sparsemax()),
        ("entmax", px.mappings.Entmax(alpha=1.5)),
        ("entmax(1.25)", px.mappings.Entmax(alpha=1.25)),
        ("  entmax( alpha = 1.25 ) ", px.mappings.Entmax(alpha=1.25)),
        ("entmax(alpha=2)", px.mappings.Entmax(alpha=2)),
        ("entmax(alpha=15e-1)", px.mappings.Entmax(alpha=1.5)),
        ("sparsegen(lam=-0.5)", px.mappings.Sparsegen(lam=-0.5)),
        ("normmax(alpha=3)", px.mappings.Normmax(alpha=3)),
        ("budget(k=2.5)", px.mappings.Budget(k=2.5)),
    ],
)
def test_text_that_names_a_mapping(text, expected):
    assert parse(text) == expected
    assert parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("entmx(alpha=1.5)", r"unknown mapping 'entmx' in 'entmx\(alpha=1\.5\)'.*mean 'entmax'"),
        ("Softmax", r"unknown mapping 'Softmax'.*known are .*softmax.*mean 'softmax'"),
        ("banana", r"unknown mapping 'banana'.*known are budget, .*entmax"),
        ("entmax(alpa=1.5)", r"unknown argument 'alpa' of entmax.*takes alpha.*mean 'alpha'"),
        ("budget(budget=2)", r"unknown argument 'budget' of budget.*takes k"),
        ("softmax(alpha=1)", r"unknown argument 'alpha' of softmax.*takes none"),
        ("entmax(1.5, 2)", r"entmax takes 1 argument\(s\), got 2"),
        ("entmax(1.5, alpha=2)", r"argument 'alpha' of entmax is given twice"),
        ("entmax(alpha=1.2, alpha=1.5)", r"argument 'alpha' of entmax is given twice"),
        ("entmax(alpha=0.5)", r"alpha must be at least 1.*got 0\.5"),
        ("sparsegen(lam=1)", r"lam must be .*less than 1, got 1"),
        ("entmax(alpha=1 + 1)", r"must be written like 'entmax\(alpha=1\.5\)'"),
        ("entmax(alpha=x)", r"must be written like 'entmax\(alpha=1\.5\)'"),
        ("entmax(**{'alpha': 2})", r"must be written like 'entmax\(alpha=1\.5\)'"),
        ("entmax(*[2])", r"must be written like 'entmax\(alpha=1\.5\)'"),
        ("entmax(alpha=1.5", r"must be written like .*got 'entmax\(alpha=1\.5'"),
        ("a.b(c=1)", r"must be written like .*got 'a\.b\(c=1\)'"),
        ("entmax; softmax", r"must be written like"),
        ("", r"must be written like .*got ''"),
    ],
)
def test_text_that_does_not(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


@pytest.mark.parametrize("value", [None, 1.5, ["entmax"], b"entmax", px.entmax])
def test_what_is_neither_text_nor_a_mapping(value):
    with pytest.raises(TypeError, match=r"^mapping must be text such as .* or a mapping, got "):
        parse(value)


def test_an_argument_of_a_wrong_type():
    with pytest.raises(TypeError, match=r"^alpha must be a number or a tensor, got 'big'"):
        parse("entmax(alpha='big')")


def test_the_registry_is_a_copy():
    registry()["entmax"] = None
    assert registry()["entmax"] is px.mappings.Entmax
    assert all(name.replace("_", "") == cls.__name__.lower() for name, cls in registry().items())
