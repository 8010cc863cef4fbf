"""The benchmark of training: a gate that sees wrong gradients, and rows that can be compared."""

from __future__ import annotations

import pytest
import torch

from parsimax.bench import training
from parsimax.bench import training_contenders as contenders
from parsimax.seq2seq.models import RNNSettings, TransformerSettings

RNN = training.Case(
    "tiny RNN", "float32", RNNSettings(embedding=8, hidden=8), (12, 10), 4, 0, (2, 4), 2
)
SMALL = TransformerSettings(
    dim=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=8, tie_output=False
)
TRANSFORMER = training.Case("tiny Transformer", "float32", SMALL, (12, 10), None, 16, (2, 4), 2)


class Wrong(torch.nn.Module):
    """The right loss with ``factor`` times its gradient."""

    def __init__(self, model, factor):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, batch):
        loss = self.model(batch)
        if loss.dtype == torch.float64:
            return loss
        return self.factor * loss + (1 - self.factor) * loss.detach()


def test_all_contenders_are_right_and_timed():
    for case in (RNN, TRANSFORMER):
        rows = training.measure(case, training.Plan("cpu", (case,), 1))
        assert [row.contender for row in rows] == list(contenders.CHOICES)
        for row in rows:
            assert row.refused is None
            assert row.tokens_per_second > 0
        assert rows[0].ratio == 1.0


@pytest.mark.parametrize("factor", [-1.0, 1.002])
def test_a_wrong_gradient_is_refused(factor):
    settings = RNNSettings(embedding=8, hidden=8, dropout=0.0)
    model = contenders.model(contenders.ENTMAX, settings, (12, 10))
    batch = RNN.make_batches()[0]
    assert training.refuse(model, batch, "float32") is None
    why = training.refuse(Wrong(model, factor), batch, "float32")
    assert why is not None
    assert "gradient" in why


def test_batches_are_the_same_every_time_and_padded_as_buckets_are():
    first, second = RNN.make_batches(), RNN.make_batches()
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.source, b.source)
        assert torch.equal(a.target, b.target)
        assert (a.target[:, 0] != 0).all()
        assert int((a.target != 0).sum(1).max()) == a.target.shape[1]
