r"""Sources as a user writes them, one a line, when there is no table to read.

For parallel text and tables of two columns a line is the source itself. An inflection is written

- ``lemma TAB TAG;TAG``, with the language in a third column if the model knows several, or
- as JSON, ``{"lemma": "draw", "tags": "V;PST", "language": "english"}``; tags may be a list.
"""

from __future__ import annotations

import json

from .readers import ALL, Example, split_tags

_FORM = (
    "a source of an inflection must be written 'lemma TAB TAG;TAG', with a third column for the "
    'language if the model knows several, or as JSON {"lemma": ..., "tags": ..., "language": ...}'
)


def parse_source(text: str, format: str) -> Example:
    """The example without a target that a line stands for."""
    if format != "inflection":
        if not text.strip():
            raise ValueError("a source must not be empty, got white space")
        return Example(text)
    lemma, tags, language = _from_json(text) if text.lstrip().startswith("{") else _columns(text)
    if not lemma.strip() or not tags:
        what = "tags" if lemma.strip() else "lemma"
        raise ValueError(f"{_FORM}; got no {what} in {text!r}")
    return Example(lemma, tags=tags, group=language or ALL)


def _columns(text: str) -> tuple[str, tuple[str, ...], str]:
    columns = text.split("\t")
    if len(columns) not in (2, 3):
        count = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
        raise ValueError(f"{_FORM}; got {count} in {text!r}")
    return columns[0], split_tags(columns[1]), "".join(columns[2:]).strip()


def _from_json(text: str) -> tuple[str, tuple[str, ...], str]:
    try:
        saved = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{_FORM}; got JSON that cannot be read ({error}): {text!r}") from error
    known = {"lemma", "tags", "language"}
    if not {"lemma", "tags"} <= saved.keys() <= known:
        raise ValueError(f"{_FORM}; got the keys {', '.join(saved) or 'none'}")
    tags, language = saved["tags"], saved.get("language") or ""
    if isinstance(tags, list):
        tags = ";".join(map(str, tags))
    if not all(isinstance(value, str) for value in (saved["lemma"], tags, language)):
        raise ValueError(f"{_FORM}; got values that are not text in {text!r}")
    return saved["lemma"], split_tags(tags), language
