"""Hugging Face classifiers, made from configs: four functions that are the model itself."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

import parsimax as px
from parsimax.analysis.audit import Search, Text, audit, from_model, from_texts, importance

transformers = pytest.importorskip("transformers")
pytestmark = [
    # what transformers does to itself when it is imported
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "initializer_range": 0.4,  # random models of the usual 0.02 predict the same for all texts
}
KINDS = {
    "Bert": SIZES,
    "Roberta": SIZES | {"pad_token_id": 1},
    "Electra": SIZES | {"embedding_size": 16},
    "DistilBert": {"vocab_size": 40, "dim": 16, "n_layers": 3, "n_heads": 4, "hidden_dim": 24,
                   "initializer_range": 0.4},
}  # fmt: skip


def made(kind="Bert", **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**(KINDS[kind] | options))
    return getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()


def batch():
    tokens = torch.randint(5, 40, (3, 8), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, 8, dtype=torch.bool)
    mask[1, 5:] = False
    return tokens, mask


def some_texts(count=12):
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(3, 9, (count,), generator=generator).tolist()
    rows = [[2, *torch.randint(5, 40, (n,), generator=generator).tolist(), 3] for n in lengths]
    return [Text(row, [f"w{t}" for t in row], i % 2) for i, row in enumerate(rows)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", [None, 2])
def test_the_parts_are_the_whole(kind, head):
    model = made(kind).double()
    tokens, mask = batch()
    out = model(input_ids=tokens, attention_mask=mask.long(), output_attentions=False)
    found = from_model(model, head=head)
    h = found.encode(found.embed(tokens), mask)
    a = found.attend(h, mask)
    y = found.decode(h, a, mask)
    torch.testing.assert_close(y, out.logits.softmax(-1), rtol=0, atol=1e-10)
    torch.testing.assert_close(a.sum(-1), torch.ones(3, dtype=torch.float64))
    assert not a[~mask].any()
    # the model that was given is as it was
    again = model(input_ids=tokens, attention_mask=mask.long())
    torch.testing.assert_close(again.logits, out.logits, rtol=0, atol=0)


@pytest.mark.parametrize("head", [None, 1])
def test_weights_are_those_that_the_model_reports(head):
    model = made()
    model.set_attn_implementation("eager")
    tokens, mask = batch()
    out = model(input_ids=tokens, attention_mask=mask.long(), output_attentions=True)
    first = out.attentions[-1][:, :, 0]
    expected = first.mean(1) if head is None else first[:, head]
    found = from_model(model, head=head)
    a = found.attend(found.encode(found.embed(tokens), mask), mask)
    torch.testing.assert_close(a, expected, rtol=0, atol=1e-6)


def test_other_weights_are_divided_among_heads_and_reach_the_prediction():
    found = from_model(made())
    tokens, mask = batch()
    h = found.encode(found.embed(tokens), mask)
    a = found.attend(h, mask)
    even = mask / mask.sum(1, keepdim=True)
    moved = found.decode(h, even, mask)
    assert (moved - found.decode(h, a, mask)).abs().max() > 1e-3
    # exchanged weights do not stay
    torch.testing.assert_close(found.attend(h, mask), a, rtol=0, atol=0)


@pytest.mark.parametrize("detach", [False, True])
def test_gradients_are_autograds(detach):
    """The gradient of the parts is that of the model; with attention detached it differs."""
    from parsimax.analysis.audit import GradientNorm

    model = made().double()
    text = some_texts(1)
    (ours,) = importance(from_model(model), text, GradientNorm(detach_attention=detach))
    x = model.get_input_embeddings()(torch.tensor([text[0].tokens])).detach().requires_grad_()
    y = model(inputs_embeds=x).logits.softmax(-1)
    y.max().backward()
    expected = x.grad[0].norm(dim=-1)
    expected = expected / expected.sum()
    assert bool((ours - expected).abs().max() < 1e-8) is not detach


def test_a_whole_audit():
    result = audit(
        from_model(made()), some_texts(), searches=[Search(steps=5)], permutations=3, resamples=20
    )
    assert len(result.kept) == 12
    assert not result.excluded
    assert result.estimate("tau_b", "attention", "gradient_norm:inputs").count == 12
    json.loads(result.to_json())


def test_what_cannot_be_audited():
    with pytest.raises(TypeError, match="must be a classifier of texts such as Bert"):
        from_model(transformers.BertModel(transformers.BertConfig(**SIZES)))
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        from_model(made(num_labels=1))
    for head in (4, -1):
        with pytest.raises(ValueError, match="head must be an int from 0 to 3"):
            from_model(made(), head=head)
    for other in ("bert", torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match="must be a classifier of texts such as Bert"):
            from_model(other)
    with pytest.raises(ValueError, match="must choose one of its classes"):
        from_model(made(problem_type="multi_label_classification"))


def test_decoders_and_sparse_models_are_refused():
    config = transformers.GPT2Config(
        n_embd=8, n_layer=2, n_head=2, vocab_size=30, n_positions=9, pad_token_id=0,
        bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="first token does not see the others"):
        from_model(transformers.GPT2ForSequenceClassification(config))
    sparse = made()
    px.huggingface.enable(sparse, alpha=1.5)
    with pytest.raises(ValueError, match="must have softmax attention"):
        from_model(sparse)


def test_texts_longer_than_a_model_has_positions():
    model = from_model(made())
    with pytest.raises(ValueError, match=r"has \d+ positions, got a text of \d+ tokens; cut texts"):
        audit(model, [Text([5] * 600, ["x"] * 600)] * 3)


class Tokenizer:
    """As much of a tokenizer as is needed."""

    def __call__(self, text, truncation=False, max_length=None):
        ids = [2, *(5 + len(word) for word in text.split()), 3]
        return {"input_ids": ids[:max_length] if truncation else ids}

    def convert_ids_to_tokens(self, ids):
        return [str(i) for i in ids]


def test_texts_of_a_tokenizer():
    found = from_texts(Tokenizer(), ["a fine film", "dull"], [1, 0], max_length=4)
    assert found[0] == Text((2, 6, 9, 9), ("2", "6", "9", "9"), 1)
    assert found[1].tokens == (2, 9, 3)
    with pytest.raises(ValueError, match="labels: expected 2, one a text, got 1"):
        from_texts(Tokenizer(), ["a", "b"], [1])


def test_the_documented_example(tmp_path, monkeypatch, capsys):
    path = Path(__file__).parents[3] / "experiments" / "audits" / "bert.py"
    spec = importlib.util.spec_from_file_location("bert_example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = ["--texts", "20", "--epochs", "1", "--steps", "3", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["bert.py", *arguments])
    module.main()
    assert "Do predictions depend on the weights" in capsys.readouterr().out
    assert "a small BERT" in (tmp_path / "audit.html").read_text(encoding="utf-8")
