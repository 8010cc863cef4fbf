"""Both models through what they offer: losses, steps, attention and sums."""

from __future__ import annotations

import pytest
import torch

import parsimax as px
from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.data.symbols import BOS, EOS, PAD
from parsimax.seq2seq.models import RNNSettings, TransformerSettings, build, heads
from parsimax.seq2seq.models.settings import LEARNED
from parsimax.seq2seq.training.graphs import Grid, pad

SOURCE_SIZE, TARGET_SIZE = 11, 9
SMALL = {"dim": 12, "heads": 3, "encoder_layers": 2, "decoder_layers": 2, "feedforward": 16}
SETTINGS = {
    "rnn": RNNSettings(embedding=8, hidden=10),
    "rnn of unequal depth": RNNSettings(
        embedding=8, hidden=10, encoder_layers=1, decoder_layers=3, attention=LEARNED
    ),
    "rnn with sparsegen": RNNSettings(
        embedding=8, hidden=10, attention="sparsegen(lam=0.3)", output="sparsegen(lam=0.2)"
    ),
    "rnn with fertility": RNNSettings(
        embedding=8, hidden=10, attention="constrained_sparsemax", fertility=1.5
    ),
    "rnn with fertility, dense": RNNSettings(
        embedding=8, hidden=10, attention="constrained_softmax", fertility=0.7, exhaustion=0.5
    ),
    "transformer": TransformerSettings(**SMALL),
    "transformer after": TransformerSettings(
        **SMALL,
        norm="post",
        encoder_attention="softmax",
        context_attention="sparsemax",
        decoder_attention="entmax(alpha=1.3)",
        output="entmax(alpha=1.5)",
        tie_output=False,
    ),
}
every_model = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())


def make(settings, seed=0):
    torch.manual_seed(seed)
    return build(settings, SOURCE_SIZE, TARGET_SIZE).double().eval()


def make_batch(lengths=((5, 4), (3, 6), (1, 1), (4, 2)), seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(n, size):
        return torch.randint(4, size, (n,), generator=generator)

    rows = len(lengths)
    source = torch.zeros(rows, max(s for s, _ in lengths), dtype=torch.long)
    target = torch.zeros(rows, max(t for _, t in lengths), dtype=torch.long)
    for row, (s, t) in enumerate(lengths):
        source[row, :s] = draw(s, SOURCE_SIZE)
        target[row, : t - 1] = draw(t - 1, TARGET_SIZE)
        target[row, t - 1] = EOS
    return Batch(source, torch.tensor([s for s, _ in lengths]), target, torch.arange(rows))


def alone(batch, row):
    """One sentence without any padding."""
    s, t = int(batch.source_lengths[row]), int((batch.target[row] != PAD).sum())
    this = slice(row, row + 1)
    return Batch(
        batch.source[this, :s],
        batch.source_lengths[this],
        batch.target[this, :t],
        batch.index[this],
    )


def gradients(model, loss):
    return torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])


def stepwise(model, batch):
    """Probabilities (B, T, V) by steps along the targets, with the state reordered on the way."""
    state = model.start(batch.source, batch.source_lengths)
    order = torch.arange(len(batch.source))
    result = []
    for previous in batch.decoder_input.unbind(1):
        p, state = model.step(state, previous[order])
        result.append(p[order.argsort()])
        turned = order.flip(0)
        state = model.select(state, torch.arange(len(order)).flip(0))
        order = turned
    return torch.stack(result, 1)


@every_model
def test_sentences_do_not_know_of_each_other_nor_of_padding(settings):
    model, batch = make(settings), make_batch()
    together = model(batch)
    apart = [model(alone(batch, row)) for row in range(4)]
    torch.testing.assert_close(together, sum(apart), rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(gradients(model, together), gradients(model, sum(apart)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@every_model
def test_more_padding_changes_nothing(settings):
    model, batch = make(settings), make_batch()
    padded = pad(batch, Grid(8, 4, 4).shape(batch))
    assert padded.source.shape == (8, 8)
    assert padded.target.shape == (8, 8)
    loss, same = model(batch), model(padded)
    torch.testing.assert_close(loss, same, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(gradients(model, loss), gradients(model, same), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@every_model
def test_steps_give_what_teacher_forcing_gives(settings):
    model, batch = make(settings), make_batch()
    with torch.no_grad():
        p = stepwise(model, batch)
        kept = batch.target != PAD
        assert (p[..., [PAD, BOS]] == 0).all()
        torch.testing.assert_close(p.sum(-1), torch.ones_like(p[..., 0]), rtol=0, atol=1e-6)
        gold = p.gather(-1, batch.target.unsqueeze(-1)).squeeze(-1)
        measured = model.measure(batch, epsilon=1e-3)
    smooth = ((gold + 1e-3) / (1 + 1e-3 * (TARGET_SIZE - 2))).log()  # PAD and BOS get nothing
    score = gold + (1 - p.square().sum(-1)) / 2
    for mine, theirs in (
        (measured.tokens, kept.sum()),
        (measured.sentences, 4),
        (measured.correct, (p.argmax(-1) == batch.target)[kept].sum()),
        (measured.zero_gold, (gold[kept] == 0).sum()),
        (measured.support, (p > 0)[kept].sum()),
        (measured.log_smoothed, smooth[kept].double().sum()),
        (measured.sparsemax_score, score[kept].double().sum()),
        (measured.loss, model(batch).detach()),
    ):
        assert float(mine) == pytest.approx(float(theirs), rel=1e-5)


@every_model
def test_attention_is_a_distribution_over_what_may_be_seen(settings):
    model, batch = make(settings), make_batch()
    with torch.no_grad():
        looked = model.attention(batch)
        measured = model.measure(batch)
    is_rnn = isinstance(settings, RNNSettings)
    layers, heads = (1, 1) if is_rnn else (settings.decoder_layers, settings.heads)
    context = looked["context"]
    if model.sink:
        assert context.shape == (4, 1, 1, 6, 6)
        torch.testing.assert_close(context.sum(-1), torch.ones_like(context[..., 0]))
        given = context[..., :5].sum((1, 2, 3))
        assert (given <= settings.fertility + 1e-9).all()
        assert (given > settings.fertility - 1e-9).any(), "no symbol is used up"
        assert (context[..., 5] > 0).any()
        context = context[..., :5]
    assert context.shape == (4, layers, heads, 6, 5)
    beyond = torch.arange(5) >= batch.source_lengths[:, None]
    assert (context.masked_select(beyond[:, None, None, None]) == 0).all()
    if not model.sink:
        torch.testing.assert_close(context.sum(-1), torch.ones_like(context[..., 0]))
    kept = batch.target != PAD
    counted = (context > 0).sum(-1).double().flatten(1, 2).mean(1)[kept].sum()
    assert float(measured.attended) == pytest.approx(float(counted))
    assert set(looked) == ({"context"} if is_rnn else {"context", "encoder", "decoder"})
    if not is_rnn:
        assert (looked["decoder"].triu(1) == 0).all()
        assert looked["encoder"].shape == (4, 2, 3, 5, 5)


@every_model
def test_alphas_are_there_if_and_only_if_they_are_learned(settings):
    model = make(settings)
    expected = {
        kind
        for kind in ("context", "encoder", "decoder")
        if getattr(settings, f"{kind}_attention", None) == LEARNED
        or (kind == "context" and getattr(settings, "attention", None) == LEARNED)
    }
    alphas = model.alphas()
    assert set(alphas) == expected
    for alpha in alphas.values():
        assert ((alpha > 1) & (alpha < 2)).all()
    named = {name: p for name, p in model.named_parameters() if "learned" in name}
    model(make_batch()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in named.values())


@every_model
def test_a_few_steps_of_training_lower_the_loss(settings):
    model, batch = make(settings).train(), make_batch()
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    losses = []
    for _ in range(150):
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


# --- the recurrent encoder ------------------------------------------------------------------------


def test_measuring_keeps_the_weights_it_reports_alone(monkeypatch):
    model = make(SETTINGS["transformer"])
    kept = []

    def counting(*arguments):
        context, weights = attend(*arguments)
        kept.append(weights.shape[-2:])
        return context, weights

    attend = heads.attend
    monkeypatch.setattr(heads, "attend", counting)
    batch = make_batch()
    with torch.no_grad():
        model.measure(batch)
    assert kept == [(batch.target.shape[1], batch.source.shape[1])] * SMALL["decoder_layers"]


def test_the_encoder_is_a_packed_lstm():
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    from parsimax.seq2seq.models.encoder import BiLSTM

    torch.manual_seed(1)
    mine = BiLSTM(6, 8, 2, 0.0).double()
    theirs = torch.nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for number, layer in enumerate(mine.layers):
            for name, weight in layer.named_parameters():
                kept = weight[:, :-1] if name.startswith("weight_ih") else weight
                getattr(theirs, name.replace("_l0", f"_l{number}")).copy_(kept)
    x, lengths = torch.randn(3, 7, 6, dtype=torch.float64), torch.tensor([7, 2, 5])
    encoded = mine(x, lengths)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    states, (h, c) = theirs(packed)
    states, _ = pad_packed_sequence(states, batch_first=True)
    inside = torch.arange(7) < lengths[:, None]
    torch.testing.assert_close(encoded.states[inside], states[inside])
    for layer in range(2):
        both = slice(2 * layer, 2 * layer + 2)
        torch.testing.assert_close(encoded.hidden[layer], torch.cat([*h[both]], -1))
        torch.testing.assert_close(encoded.cells[layer], torch.cat([*c[both]], -1))


def test_what_stands_for_padding_is_never_learned():
    model, batch = make(SETTINGS["rnn"]).train(), make_batch()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-1, weight_decay=0.5)  # decay, too

    def columns():
        return torch.cat(
            [
                weight[:, -1].detach().clone()
                for layer in model.encoder.layers
                for name, weight in layer.named_parameters()
                if name.startswith("weight_ih")
            ]
        )

    before = columns()
    for _ in range(5):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
    model(batch)
    assert torch.equal(columns(), before)
    assert (model.source_embedding.weight[PAD] == 0).all()


# --- the output layer -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["softmax", "entmax(alpha=1.5)", "sparsemax", "normmax(alpha=2.0)"]
)
def test_the_loss_is_the_mapping_s_own(text):
    from parsimax.seq2seq.models.output import OutputLayer

    torch.manual_seed(0)
    layer = OutputLayer(5, TARGET_SIZE, text).double()
    hidden = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[4, EOS, PAD], [7, 8, EOS]])
    loss = layer.loss(hidden, target)
    (gradient,) = torch.autograd.grad(loss, hidden)
    p = layer.mapping(layer.scores(hidden))
    y = torch.nn.functional.one_hot((target - EOS).clamp_min(0), TARGET_SIZE - EOS)
    expected = ((p - y) * (target != PAD)[..., None]) @ layer.weight
    torch.testing.assert_close(gradient, expected.detach())
    scores = layer.scores(hidden)[target != PAD]
    right = px.fenchel_young_loss(scores, (target - EOS)[target != PAD], layer.mapping).detach()
    torch.testing.assert_close(loss.detach(), right * len(scores))


def test_scores_that_are_many_are_never_held_at_once(monkeypatch):
    from parsimax.seq2seq.models import output

    layer = output.OutputLayer(5, TARGET_SIZE, "entmax(alpha=1.5)")
    hidden, target = torch.randn(4, 3, 5), torch.randint(2, TARGET_SIZE, (4, 3))
    plain = layer.loss(hidden, target)
    monkeypatch.setattr(output, "_SCORES", 0)
    monkeypatch.setattr(output, "entmax_loss", None)  # not to be called
    torch.testing.assert_close(layer.loss(hidden, target), plain)


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (RNNSettings(hidden=7), "even"),
        (RNNSettings(share_embeddings=True), "one vocabulary"),
        (RNNSettings(output=LEARNED), "fixed parameter"),
        (RNNSettings(attention="entmx"), "entmax"),
        (TransformerSettings(dim=10, heads=4), "multiple of heads"),
    ],
)
def test_settings_that_make_no_model(settings, words):
    with pytest.raises(ValueError, match=words):
        build(settings, SOURCE_SIZE, TARGET_SIZE)


def test_fertility_is_kept_in_float32_by_a_model_in_half_precision():
    model, batch = make(SETTINGS["rnn with fertility"]).bfloat16(), make_batch()
    with torch.no_grad():
        state = model.start(batch.source, batch.source_lengths)
        weights = model.attention(batch)["context"]
    assert state.left.dtype == torch.float32
    assert weights.dtype == torch.bfloat16
    assert weights[..., :-1].double().sum((1, 2, 3)).max() <= 1.5 + 1e-6
