"""Steps as CUDA graphs: shapes anywhere, the rest on a GPU."""

from __future__ import annotations

import pytest
import torch
from tests.seq2seq.models.test_models import make_batch

from parsimax.seq2seq.data.symbols import PAD, UNK
from parsimax.seq2seq.models import RNNSettings, TransformerSettings, build
from parsimax.seq2seq.training.graphs import GraphedLoss, Grid, pad

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_shapes_are_rounded_up():
    batch = make_batch()  # 4 sentences, 5 source and 6 target symbols
    assert Grid(8, 4, 2).shape(batch) == (8, 8, 6)
    assert Grid(1, 1, 1).shape(batch) == (4, 5, 6)


def test_padding_keeps_the_batch_and_adds_nothing_that_counts():
    batch = make_batch()
    padded = pad(batch, (8, 8, 8))
    assert torch.equal(padded.source[:4, :5], batch.source)
    assert torch.equal(padded.target[:4, :6], batch.target)
    assert (padded.target[4:] == PAD).all()
    assert (padded.target[:, 6:] == PAD).all()
    assert (padded.source[4:, 0] == UNK).all()  # an encoder needs something to read
    assert padded.source_lengths.tolist() == [*batch.source_lengths.tolist(), 1, 1, 1, 1]


SETTINGS = {
    "rnn": RNNSettings(embedding=16, hidden=16, dropout=0.0),
    "transformer": TransformerSettings(
        dim=32, heads=2, encoder_layers=1, decoder_layers=1, feedforward=32, dropout=0.0
    ),
}


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_replay_gives_what_a_plain_step_gives(settings, half):
    torch.manual_seed(0)
    model = build(settings, 11, 9).cuda().train()

    def cast():
        return torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False)

    def plainly(batch):
        model.zero_grad(set_to_none=True)
        with cast():
            loss = model(batch)
        loss.backward()
        return float(loss.detach()), [p.grad.clone() for p in model.parameters()]

    batches = [make_batch(seed=seed).to("cuda") for seed in range(3)]
    shorter = make_batch(((3, 4), (2, 2)), seed=9).to("cuda")  # padded to the same shape
    expected = [plainly(batch) for batch in (*batches, shorter)]
    model.zero_grad(set_to_none=True)
    graphed = GraphedLoss(model, Grid(8, 8, 8), context=cast)
    tolerance = 3e-2 if half else 1e-4
    for _ in range(3):  # run, capture, replay
        for batch, (loss, grads) in zip((*batches, shorter), expected, strict=True):
            model.zero_grad(set_to_none=False)
            assert float(graphed(batch)) == pytest.approx(loss, rel=tolerance)
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                scale = grad.abs().max().clamp_min(1e-3)
                assert ((parameter.grad - grad).abs().max() / scale) < tolerance


@needs_gpu
@pytest.mark.gpu
def test_dropout_differs_between_replays():
    model = build(RNNSettings(embedding=16, hidden=16, dropout=0.5), 11, 9).cuda().train()
    graphed, batch = GraphedLoss(model), make_batch().to("cuda")
    losses = {round(float(graphed(batch)), 6) for _ in range(6)}
    assert len(losses) > 3
