"""The whole audit: what it holds, how it is written, and what it says about bad input."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math

import pytest
import torch
from torch import nn

import parsimax as px
from parsimax.analysis.audit import (
    Auditable,
    GradientNorm,
    LeaveOneOut,
    Measure,
    Search,
    Text,
    audit,
    compare,
    importance,
    kendall_tau,
)
from parsimax.analysis.audit.quality import quality

from .models import model, texts

QUICK = {"searches": (Search(steps=5),), "permutations": 5, "resamples": 100}
LENGTHS = [2, 3, 5, 8, 8, 13, 6, 4, 9, 11]


@pytest.fixture(scope="module")
def result():
    m = model(mapping="sparsemax")
    data = texts([*LENGTHS, 1, 0])
    searches = (Search(steps=5), Search(steps=5, mapping="entmax(alpha=1.5)", on_support=True))
    return audit(m.auditable(), data, **{**QUICK, "searches": searches})


def test_the_function_is_public():
    assert px.analysis.audit is audit
    assert px.analysis.audit.Search is Search
    assert px.analysis.Text is Text
    with pytest.raises(AttributeError, match="adit"):
        _ = px.analysis.adit


def test_numbers_are_those_of_the_parts(result):
    m = model(mapping="sparsemax")
    data = texts(LENGTHS)
    values = importance(m.auditable(), data, "leave_one_out")
    weights = []
    for text in data:
        tokens = torch.tensor([list(text.tokens)])
        mask = torch.ones_like(tokens, dtype=torch.bool)
        weights.append(m.attend(m.encode(m.embed(tokens), mask), mask)[0].detach())
    tau = kendall_tau(weights, values)
    column = result.columns[Measure("tau_b", "attention", "leave_one_out:inputs")]
    torch.testing.assert_close(column.values, tau.tau, equal_nan=True)
    found = result.estimate("tau_b", "attention", "leave_one_out:inputs")
    assert found.mean == pytest.approx(tau.tau.nanmean().item())
    assert found.count + sum(found.excluded.values()) == len(LENGTHS)
    density = [(w > 0).double().mean().item() for w in weights]
    assert result.estimate("density").mean == pytest.approx(sum(density) / len(density))


def test_influence_on_hidden_states(result):
    m = model(mapping="sparsemax")
    values = importance(m.auditable(), texts(LENGTHS), target="hidden")
    subject = "gradient_norm:inputs-to-hidden"
    share = [v.diagonal().mean().item() for v in values]
    first = [(v.argmax(-1) == torch.arange(len(v))).double().mean().item() for v in values]
    entropy = [(-(v * v.log()).sum(-1) / math.log(len(v))).mean().item() for v in values]
    for name, expected in (("own_share", share), ("own_first", first), ("entropy", entropy)):
        found = result.columns[Measure(name, subject)].values
        assert found.tolist() == pytest.approx(expected)


def test_exclusions_are_counted_and_named(result):
    assert [(e.index, e.reason) for e in result.excluded] == [(10, "one token"), (11, "no tokens")]
    assert result.texts == 12
    assert result.kept == tuple(range(10))
    five = result.estimate("top_5_overlap", "attention", "gradient_norm:inputs")
    ((reason, count),) = five.excluded.items()
    assert (count, five.count) == (4, 6)
    assert "no more than 5 tokens" in reason
    alone = result.estimate("jsd", "adversarial entmax(alpha=1.5) on the support")
    assert set(alone.excluded) <= {"support of one token"}
    for column in result.columns.values():
        for value, reason in zip(column.values.tolist(), column.reasons, strict=True):
            assert math.isnan(value) == bool(reason)


def test_frozen(result):
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.texts = 0
    with pytest.raises(KeyError, match="tau_c/attention was not measured"):
        result.estimate("tau_c")


def test_json_and_csv(result, tmp_path):
    result.to_json(tmp_path / "audit.json")
    read = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert len(read["table"]) == len(result.estimates)
    assert read["verdict"]["headline"] == result.verdict.headline
    assert read["excluded"][0] == {"index": 10, "reason": "one token"}
    assert "NaN" not in result.to_json()
    rows = list(csv.DictReader(io.StringIO(result.to_csv(tmp_path / "audit.csv"))))
    assert len(rows) == len(result.estimates)
    by_name = {(r["measure"], r["subject"], r["reference"]): r for r in rows}
    row = by_name["top_5_overlap", "attention", "gradient_norm:inputs"]
    assert row["excluded"].startswith("4 × no more than 5 tokens")
    assert (tmp_path / "audit.csv").read_text(encoding="utf-8") == result.to_csv()
    per_text = list(csv.DictReader(io.StringIO(result.texts_to_csv())))
    assert [int(r["text"]) for r in per_text] == list(range(10))
    assert per_text[0]["top_5_overlap/attention/gradient_norm:inputs"] == ""


def test_examples(result):
    assert len(result.examples) == 6
    taus = [float(e.chosen_for.split()[-5].strip(",")) for e in result.examples]
    assert taus == sorted(taus, reverse=True)
    for example in result.examples:
        n = len(example.words)
        assert len(example.attention) == n
        assert all(len(v) == n for v in example.importance.values())
        assert all(len(v) == n for v in example.adversarial.values())


def test_same_numbers_again_and_in_small_batches(result):
    m = model(mapping="sparsemax")
    data = texts([*LENGTHS, 1, 0])
    searches = (Search(steps=5), Search(steps=5, mapping="entmax(alpha=1.5)", on_support=True))
    again = audit(m.auditable(), data, **{**QUICK, "searches": searches}, memory=1)
    assert list(again.columns) == list(result.columns)
    for key, column in result.columns.items():
        torch.testing.assert_close(
            again.columns[key].values,
            column.values,
            equal_nan=True,
            rtol=0,
            atol=1e-8,
            msg=str(key),
        )


def test_parts_can_be_left_out():
    m = model()
    stages = []
    found = audit(
        m.auditable(),
        texts([4, 5]),
        importances=[("integrated_gradients", "inputs"), (LeaveOneOut("zero"), "hidden")],
        states=None,
        fractions=(),
        permutations=0,
        searches=(),
        examples=1,
        progress=lambda stage, done, total: stages.append((stage, done, total)),
    )
    assert {key.name for key in found.columns} == {
        "tau_b",
        "tau_b_ceiling",
        "tau_b_of_ceiling",
        "tau_b_significant",
        "tau_b_support",
        "top_1_overlap",
        "top_3_overlap",
        "top_5_overlap",
        "entropy",
        "density",
    }
    named = [key.reference for key in found.columns if key.name == "tau_b"]
    assert named[0] == "integrated_gradients:inputs"
    assert "removal='zero'" in named[1]
    assert len(found.examples) == 1
    for stage in {s[0] for s in stages}:
        steps = [s[1:] for s in stages if s[0] == stage]
        assert steps[0][0] == 0
        assert steps[-1][0] == steps[-1][1]


def test_some_states_of_each_text():
    m = model()
    found = audit(
        m.auditable(),
        texts([3, 9, 12]),
        importances=[("gradient_norm", "inputs")],
        states_per_text=4,
        fractions=(),
        permutations=0,
        searches=(),
    )
    assert found.settings["states_per_text"] == 4
    every = importance(m.auditable(), texts([3, 9, 12]), target="hidden")
    share = found.columns[Measure("own_share", "gradient_norm:inputs-to-hidden")].values
    assert share[0].item() == pytest.approx(every[0].diagonal().mean().item())
    for t in (1, 2):
        assert every[t].diagonal().min() <= share[t] <= every[t].diagonal().max()


# --- bad input -----------------------------------------------------------------------------------


def changed(**functions):
    m = model()
    return Auditable(
        **{name: getattr(m, name) for name in ("embed", "encode", "attend", "decode")} | functions
    )


def refuses(error, message, auditable, data=None, **options):
    with pytest.raises(error, match=message):
        audit(auditable, texts([3, 6]) if data is None else data, **{**QUICK, **options})


def test_a_model_without_attention():
    refuses(TypeError, "auditable.attend must be a function", changed(attend=None))
    refuses(TypeError, "need_weights=True", changed(attend=lambda h, mask: None))
    refuses(
        ValueError,
        r"attend must return a tensor of shape \(1, 3\)",
        changed(attend=lambda h, mask: mask[..., None].double()),
    )


def test_weights_that_are_not_numbers():
    m = model()

    def attend(h, mask):
        a = m.attend(h, mask)
        return torch.where((mask.sum(1) == 6)[:, None], math.nan, a)

    found = audit(changed(attend=attend), texts([3, 6, 5]), **QUICK)
    assert [(e.index, e.reason) for e in found.excluded] == [
        (1, "attention weights are not finite")
    ]
    refuses(
        ValueError,
        "none is left: 2 with 'attention weights are not finite'",
        changed(
            attend=lambda h, mask: torch.full_like(h[..., 0], math.nan).masked_fill(~mask, 0.0)
        ),
    )


def test_weights_that_are_no_distribution():
    m = model()
    refuses(
        ValueError,
        "do not sum to one",
        changed(attend=lambda h, mask: 2 * m.attend(h, mask)),
    )
    refuses(
        ValueError,
        "weight zero where mask is False",
        changed(attend=lambda h, mask: torch.softmax(torch.zeros_like(h[..., 0]), -1)),
    )


def test_a_prediction_of_one_class():
    refuses(
        ValueError,
        "at least two classes, got 1",
        changed(decode=lambda h, a, mask: torch.sigmoid((a[..., None] * h).sum((1, 2)))[:, None]),
    )


def test_logits_are_not_probabilities():
    m = model()
    decode = lambda h, a, mask: m.decode(h, a, mask).log()  # noqa: E731
    refuses(ValueError, "apply softmax to logits", changed(decode=decode))


def test_labels_of_one_class_are_noted():
    data = [Text(t.tokens, t.words, 1) for t in texts([3, 6, 5])]
    found = audit(model().auditable(), data, **QUICK)
    assert math.isnan(found.quality.auc)
    assert any("All 3 labels are of class 1" in note for note in found.quality.notes)
    assert found.quality.notes[0] in found.verdict.cautions
    refuses(
        ValueError,
        "label of a text must be an int from 0 to 1",
        model().auditable(),
        [Text([3, 4], ["a", "b"], 2)],
    )


def test_texts_that_cannot_be_used():
    a = model().auditable()
    refuses(ValueError, "at least one text", a, [])
    refuses(ValueError, "none is left: 2 with 'one token'", a, texts([1, 1]))
    refuses(ValueError, "as many words as tokens", a, [Text([3, 4], ["a"])])
    refuses(TypeError, "sequence of Text, got list", a, [[3, 4]])


def test_dropout_and_texts_that_see_each_other():
    m = model()
    drop = nn.Dropout(0.5)
    refuses(ValueError, r"model.eval\(\)", changed(encode=lambda x, k: drop(m.encode(x, k))))
    refuses(
        ValueError,
        "depends on the other texts of its batch",
        changed(encode=lambda x, k: m.encode(x, k) * len(x)),
    )


def test_no_gradient():
    m = model()
    refuses(
        ValueError,
        "must be differentiable",
        changed(
            encode=lambda x, k: m.encode(x, k).detach(),
            decode=lambda h, a, k: m.decode(h, a, k).detach(),
        ),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"importances": [("gradient_norm", "input")]}, "did you mean 'inputs'"),
        ({"importances": [("gradient_norm", "inputs"), (GradientNorm(), "inputs")]}, "twice"),
        ({"importances": ["gradient_norm"]}, "pairs of a method and a source"),
        ({"states_per_text": 0}, "states_per_text"),
        ({"searches": (Search(steps=0), Search(steps=0))}, "searches must differ"),
        ({"level": 2}, "level"),
    ],
)
def test_bad_options(options, message):
    refuses(ValueError, message, model().auditable(), **options)


def test_controls_enter_the_verdict():
    m = model()
    data = texts([3, 6, 5])
    control = compare(m.auditable(), model(seed=1).auditable(), data, name="seed 1", kind="seed")
    found = audit(m.auditable(), data, controls=[control], **QUICK)
    assert found.controls == (control,)
    assert any("seed 1: attention" in line for f in found.verdict.findings for line in f.evidence)
    assert json.loads(found.to_json())["controls"][0]["kind"] == "seed"


@pytest.mark.parametrize("kind", ["averages over padding", "subtracts the mean of the batch"])
@pytest.mark.parametrize("lengths", [[6, 6, 6], [6], [4, 9]])
def test_texts_of_one_length_hide_no_dependence(kind, lengths):
    m = model()

    def encode(x, mask):
        h = torch.tanh(x @ torch.ones(6, 10, dtype=x.dtype) + x.sum(-1, keepdim=True).sin())
        mean = h.mean(1, keepdim=True) if kind.startswith("averages") else h.mean((0, 1))
        return h - mean

    auditable = Auditable(m.embed, encode, m.attend, m.decode)
    with pytest.raises(ValueError, match="depends on the other texts of its batch"):
        audit(auditable, texts(lengths), permutations=0, searches=())


def test_texts_of_one_length_are_audited():
    audit(model().auditable(), texts([6, 6]), permutations=0, searches=(), resamples=10)


def halved(dtype, mapping="softmax", decode=None):
    m = model(mapping=mapping).to(dtype)
    encode = lambda x, mask: torch.tanh(torch.cat([x, x[..., :4]], -1))  # noqa: E731
    return Auditable(m.embed, encode, m.attend, decode or m.decode)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    data = texts([40] * 6)
    whole = audit(halved(torch.float64), data, permutations=0, searches=(), resamples=10)
    found = audit(halved(dtype), data, permutations=0, searches=(), resamples=10)
    assert found.texts == len(found.kept)
    assert any(str(dtype) in note and "float32" in note for note in found.quality.notes)
    for name in ("inputs", "hidden"):
        reference = f"leave_one_out:{name}"
        half = found.estimate("tau_b", "attention", reference)
        full = whole.estimate("tau_b", "attention", reference)
        assert half.count == full.count
        assert half.mean == pytest.approx(full.mean, abs=0.25)
    weights = torch.tensor(found.examples[0].attention, dtype=torch.float64)
    assert float(weights.sum()) == pytest.approx(1)


def test_half_precision_sums_that_are_off_name_the_dtype():
    m = model().to(torch.bfloat16)

    def decode(h, a, mask):
        return m.decode(h, a, mask) * 1.05

    refuses(
        ValueError, "in torch.bfloat16; their sum is off", halved(torch.bfloat16, decode=decode)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": -3}, "examples must be an int of at least 0, got -3"),
        ({"top": (0,)}, "each k of top must be an int of at least 1, got 0"),
        ({"permutations": -1}, "permutations must be an int of at least 0"),
        ({"searches": (Search(), Search(mapping=px.mappings.parse("softmax")))}, "must differ"),
    ],
)
def test_counts_are_checked_before_anything_runs(options, message):
    def never(*_):
        raise AssertionError

    with pytest.raises(ValueError, match=message):
        audit(Auditable(never, never, never, never), texts([3, 4]), **options)


def test_a_token_that_is_none_and_a_constant_prediction():
    refuses(
        ValueError,
        "got tokens from .* to 99 .* another vocabulary",
        model().auditable(),
        [Text([3, 99], ["a", "b"], 0)],
    )

    def decode(h, a, mask):
        return torch.full((len(mask), 2), 0.5, dtype=h.dtype)

    refuses(ValueError, "a constant has nothing to explain", changed(decode=decode))


def test_area_of_three_classes():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(30, 3, generator=generator, dtype=torch.float64)
    p = p / p.sum(1, keepdim=True)
    labels = [i % 3 for i in range(30)]
    each = []
    for c in range(3):  # every pair of a text of the class and one of another
        yes = [float(p[i, c]) for i in range(30) if labels[i] == c]
        no = [float(p[i, c]) for i in range(30) if labels[i] != c]
        each.append(sum((a > b) + (a == b) / 2 for a in yes for b in no) / len(yes) / len(no))
    found = quality(p, labels)
    assert found.auc == pytest.approx(sum(each) / 3)
    assert found.notes == ()
    missing = quality(p, [i % 2 for i in range(30)])
    assert math.isnan(missing.auc)
    assert "No text has the label 2" in missing.notes[0]
