"""What a run knows about text: learned, used, saved, and protected from mistakes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from parsimax.seq2seq.data.readers import Example, read
from parsimax.seq2seq.data.symbols import BOS, EOS, NAMES, PAD, UNK
from parsimax.seq2seq.data.textcodec import CodecSettings, TextCodec


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("the cat sat\tle chat\nthe hat\tle chapeau\nthe <eos> mat\tun chat\n" * 2)
    return read("tsv", path)


def test_source_of_an_inflection(codec):
    example = Example("xad", "form", ("V", "x"), "latin")
    numbers = codec.encode_source(example)
    assert codec.source_symbols(numbers) == ("<lang:latin>", "<tag:V>", "<tag:x>", "x", "a", "d")
    # the tag x and the letter x are two symbols
    assert numbers[2] != numbers[3]
    assert codec.source_vocabulary.symbols()[4:7] == (
        "<lang:greek>",
        "<lang:latin>",
        "<lang:quenya>",
    )


def test_every_example_comes_back(codec, tables):
    for example in read("inflection", tables):
        numbers = codec.encode_target(example)
        assert EOS not in numbers
        assert UNK not in numbers
        assert codec.decode_target([*numbers, EOS, PAD, PAD]) == example.target
        assert codec.decode_target([BOS, *numbers]) == example.target


def test_many_at_once_is_one_by_one(codec, tables):
    examples = list(read("inflection", tables))
    for example, encoded in zip(examples, codec.encode(iter(examples)), strict=True):
        assert encoded == (example, codec.encode_source(example), codec.encode_target(example))


@pytest.mark.parametrize(
    "text",
    [
        "xa d\tV;SG\tgreek",
        '{"lemma": "xa d", "tags": "V;SG", "language": "greek"}',
        ' {"lemma": "xa d", "tags": ["V", "SG"], "language": "greek"}',
    ],
)
def test_sources_as_text(codec, text):
    expected = Example("xa d", tags=("V", "SG"), group="greek")
    assert codec.encode_source(text) == codec.encode_source(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("xad", r"lemma TAB TAG;TAG.*got 1 column in 'xad'"),
        ("a\tb\tc\td", "got 4 columns"),
        ("\tV\tgreek", "got no lemma"),
        ("xad\t\tgreek", "got no tags"),
        ("xad\tV", r"language must be given, one of the 3 languages.*greek, latin, quenya"),
        ("xad\tV\tgrek", r"'grek' is not among.*did you mean 'greek'"),
        ('{"lemma": "a"}', "got the keys lemma"),
        ('{"lemma": "a", "tags": "V", "lang": "greek"}', "got the keys lemma, tags, lang"),
        ('{"lemma": 3, "tags": "V"}', "not text"),
        ('{"lemma": ', "JSON that cannot be read"),
    ],
)
def test_sources_that_cannot_be_read(codec, text, message):
    with pytest.raises(ValueError, match=message):
        codec.encode_source(text)


def test_one_language_needs_no_symbol(tables, tmp_path):
    codec = TextCodec.learn(read("inflection", tables / "latin-train"))
    assert codec.languages == ()
    assert codec.source_symbols(codec.encode_source("xa\tV")) == ("<tag:V>", "x", "a")
    # whatever a file is called: it is of the one language
    assert codec.encode_source("xa\tV\tanything") == codec.encode_source("xa\tV")


def test_words(pairs):
    codec = TextCodec.learn(pairs, CodecSettings("words", "words", min_count=3))
    assert codec.source_vocabulary.symbols()[4:] == ("the",)
    assert codec.target_vocabulary.symbols()[4:] == ("chat", "le")
    assert codec.encode_source("the <eos> mat") == [4, UNK, UNK]
    assert codec.decode_target(codec.encode_target("le  grand chat")) == "le <unk> chat"
    with pytest.raises(ValueError, match="empty"):
        codec.encode_source(" ")
    with pytest.raises(ValueError, match="target"):
        codec.encode_target(Example("the"))


def test_sizes(pairs):
    codec = TextCodec.learn(pairs, CodecSettings(source_size=10, target_size=7))
    assert (len(codec.source_vocabulary), len(codec.target_vocabulary)) == (10, 7)
    assert "<space>" in codec.source_vocabulary


def test_joint(pairs):
    codec = TextCodec.learn(pairs, CodecSettings("words", "words", joint=True))
    assert codec.joint
    assert codec.source_vocabulary is codec.target_vocabulary
    assert {"the", "chat"} <= set(codec.source_vocabulary.symbols())


@pytest.mark.parametrize("joint", [True, False])
def test_pieces(pairs, joint):
    codec = TextCodec.learn(
        pairs,
        CodecSettings("bpe", "bpe", joint=joint, source_size=50, target_size=None if joint else 25),
    )
    assert codec.joint == joint
    assert (codec.source_vocabulary is codec.target_vocabulary) == joint
    assert len(codec.source_vocabulary) <= 50
    for example in pairs:
        assert UNK not in codec.encode_source(example)
        assert codec.decode_target(codec.encode_target(example)) == example.target


def test_pieces_of_lemmas(tables):
    reader = read("inflection", tables)
    codec = TextCodec.learn(reader, CodecSettings("bpe", "characters", source_size=60))
    assert len(codec.source_vocabulary) == 60  # with languages and tags
    example = next(iter(reader))
    symbols = codec.source_symbols(codec.encode_source(example))
    assert symbols[0] == "<lang:greek>"
    joined = codec.source_segmentation.join(symbols[1 + len(example.tags) :])
    assert joined == example.source


def test_pieces_of_a_sample(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("aaaa\tb\nzz\tb\n" * 50)
    codec = TextCodec.learn(read("tsv", path), CodecSettings("bpe", source_size=20, sample=50))
    assert "z" not in codec.source_vocabulary  # every other example
    assert "a" in codec.source_vocabulary


@pytest.mark.parametrize("kind", ["characters", "words", "bpe"])
@pytest.mark.parametrize("joint", [True, False])
def test_saved(pairs, tmp_path, kind, joint):
    codec = TextCodec.learn(pairs, CodecSettings(kind, kind, joint=joint, source_size=60))
    codec.save(tmp_path / "run" / "codec")
    loaded = TextCodec.load(tmp_path / "run" / "codec")
    assert loaded.fingerprint == codec.fingerprint
    assert loaded.joint == joint
    for example in pairs:
        assert loaded.encode_source(example) == codec.encode_source(example)
        assert loaded.encode_target(example) == codec.encode_target(example)


def test_saved_languages(codec, tmp_path):
    codec.save(tmp_path)
    codec.save(tmp_path)  # over itself
    loaded = TextCodec.load(tmp_path)
    assert (loaded.languages, loaded.format) == (codec.languages, "inflection")
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".json"]


def test_files_that_do_not_belong_together(codec, pairs, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"codec\.json"):
        TextCodec.load(tmp_path)
    codec.save(tmp_path)
    path = tmp_path / "target_vocabulary.json"
    path.write_text(json.dumps([*json.loads(path.read_text("utf-8")), "extra"]))
    with pytest.raises(ValueError, match=r"do not belong together.*same run"):
        TextCodec.load(tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"target_vocabulary\.json is not JSON"):
        TextCodec.load(tmp_path)


def test_learning_does_not_depend_on_the_hash_seed(tables, codec):
    program = (
        "import sys; from parsimax.seq2seq.data.readers import read\n"
        "from parsimax.seq2seq.data.textcodec import TextCodec\n"
        "print(TextCodec.learn(read('inflection', sys.argv[1])).fingerprint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tables)],
        capture_output=True,
        text=True,
        check=True,
        # this process has another seed, unless it was given this very one
        env={"PYTHONHASHSEED": "4321", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == codec.fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "letters"}, "source must be one of characters, words, bpe, got 'letters'"),
        ({"target": "bep"}, "did you mean 'bpe'"),
        ({"source": "words", "joint": True}, "same segmentation"),
        ({"joint": True, "source_size": 50, "target_size": 40}, "one vocabulary"),
        ({"source_size": len(NAMES)}, "source_size must be a whole number of at least 5, got 4"),
        ({"min_count": 0}, "min_count must be a whole number of at least 1, got 0"),
        ({"sample": 1.5}, "sample must be"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        CodecSettings(**settings)


def test_bad_rows_stop_learning(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("a\tb\nbad\n")
    with pytest.raises(ValueError, match=r"x\.tsv:2"):
        TextCodec.learn(read("tsv", path))
    assert len(TextCodec.learn(read("tsv", path, skip_bad=True)).source_vocabulary) == 5
