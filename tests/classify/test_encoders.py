"""Encoders against torch's own, and what they promise: no text depends on others or on padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from parsimax.classify.config import BiLSTMSettings, TransformerSettings
from parsimax.classify.encoders import BiLSTM, Compact, Transformer, _positions, build

LENGTHS = (5, 1, 7, 3)
SETTINGS = [
    BiLSTMSettings(hidden=6),
    BiLSTMSettings(hidden=4, layers=2),
    TransformerSettings(dim=8, heads=2, layers=2, feedforward=12),
    TransformerSettings(dim=6, heads=2, layers=1, feedforward=12, attention="sparsemax"),
]
EACH = pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s.kind}-{s.layers}")


def some(size: int = 6) -> tuple[Tensor, Tensor]:
    """Vectors in float64 with noise where there is no token."""
    x = torch.randn(len(LENGTHS), max(LENGTHS), size, dtype=torch.float64)
    return x, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def test_the_bilstm_is_torchs_on_packed_texts() -> None:
    ours = BiLSTM(6, BiLSTMSettings(hidden=4, layers=2)).double()
    theirs = nn.LSTM(6, 4, num_layers=2, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for layer in range(2):
            for suffix, parts in (("", ours.forwards), ("_reverse", ours.backwards)):
                for name, weight in parts[layer].named_parameters():
                    getattr(theirs, name.replace("l0", f"l{layer}") + suffix).copy_(weight)
    x, mask = some()
    packed = nn.utils.rnn.pack_padded_sequence(
        x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False
    )
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    torch.testing.assert_close(ours(x, mask), expected, rtol=0, atol=1e-12)


def test_the_transformer_is_torchs() -> None:
    settings = TransformerSettings(dim=8, heads=2, layers=2, feedforward=12)
    ours = Transformer(8, settings).double().eval()
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
    theirs = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
    theirs = theirs.double().eval()
    names = {
        "self_attn.in_proj_weight": "project.weight",
        "self_attn.in_proj_bias": "project.bias",
        "self_attn.out_proj.weight": "out.weight",
        "self_attn.out_proj.bias": "out.bias",
        "linear1.weight": "grow.weight",
        "linear1.bias": "grow.bias",
        "linear2.weight": "shrink.weight",
        "linear2.bias": "shrink.bias",
        "norm1.weight": "attention_norm.weight",
        "norm1.bias": "attention_norm.bias",
        "norm2.weight": "feedforward_norm.weight",
        "norm2.bias": "feedforward_norm.bias",
    }
    with torch.no_grad():
        for mine, other in zip(ours.layers, theirs.layers, strict=True):
            for name, weight in other.named_parameters():
                weight.copy_(mine.get_parameter(names[name]))
        for weight in ours.norm.parameters():
            weight.add_(torch.randn_like(weight))
        theirs.norm.load_state_dict(ours.norm.state_dict())
    x, mask = some(8)
    x.requires_grad_()  # torch has another way for what needs no gradient
    expected = theirs(x + _positions(x), src_key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, mask)[mask], expected[mask], rtol=0, atol=1e-12)


def test_positions_differ_and_are_bounded() -> None:
    table = _positions(torch.zeros(1, 50, 7, dtype=torch.float64))
    assert table.shape == (50, 7)
    assert table.abs().max() <= 1
    assert torch.pdist(table).min() > 0.1
    # the first is the sine of the position itself
    torch.testing.assert_close(table[:, 0], torch.arange(50, dtype=torch.float64).sin())


@EACH
@pytest.mark.parametrize("boundaries", [False, True])
def test_a_text_is_encoded_as_if_it_were_alone(settings, boundaries: bool) -> None:
    encoder = build(settings, 6, boundaries).double().eval()
    x, mask = some()
    together = encoder(x, mask)
    assert together.shape == (*mask.shape, encoder.size)
    assert not together[~mask].any()
    for row, length in enumerate(LENGTHS):
        alone = encoder(x[row : row + 1, :length], mask[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], rtol=0, atol=1e-12)


@EACH
@pytest.mark.parametrize("boundaries", [False, True])
def test_a_masked_word_is_a_removed_word(settings, boundaries: bool) -> None:
    encoder = build(settings, 6, boundaries).double().eval()
    x, mask = some()
    holes = mask.clone()
    holes[0, 2] = holes[2, 0] = holes[2, 4] = False
    states = encoder(x, holes)
    assert not states[~holes].any()
    for row in (0, 2):
        removed = x[row, holes[row]].unsqueeze(0)
        alone = encoder(removed, torch.ones(removed.shape[:2], dtype=torch.bool))
        torch.testing.assert_close(states[row, holes[row]], alone[0], rtol=0, atol=1e-12)


def test_boundaries_are_read_as_words_at_both_ends() -> None:
    inner = BiLSTM(6, BiLSTMSettings(hidden=4)).double()
    encoder = Compact(inner, 6, boundaries=True).double()
    assert encoder.edges is not None
    x, mask = some()
    states = encoder(x, mask)
    for row, length in enumerate(LENGTHS):
        words = torch.cat([encoder.edges[:1], x[row, :length], encoder.edges[1:]]).unsqueeze(0)
        whole = inner(words, torch.ones(1, length + 2, dtype=torch.bool))
        torch.testing.assert_close(states[row, :length], whole[0, 1:-1], rtol=0, atol=1e-12)


@EACH
def test_padding_gets_no_gradient_and_words_do(settings) -> None:
    encoder = build(settings, 6, boundaries=True).double().eval()
    x, mask = some()
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(encoder(x, mask).square().sum(), x)
    assert not gradient[~mask].any()
    assert (gradient[mask].abs().sum(-1) > 0).all()


@EACH
def test_gradients_in_float64(settings) -> None:
    encoder = build(settings, 3, boundaries=False).double().eval()
    mask = torch.tensor([[True, True, False], [True, False, True]])
    x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: encoder(x, mask), (x,))


def test_a_text_of_nothing_has_zero_states() -> None:
    for settings in SETTINGS:
        encoder = build(settings, 6, boundaries=True).double().eval()
        x, mask = some()
        mask = mask.clone()
        mask[1] = False
        states = encoder(x, mask)
        assert states.isfinite().all()
        assert not states[1].any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("boundaries", [False, True])
def test_gradients_in_evaluation_mode_on_a_gpu(boundaries: bool) -> None:
    encoder = build(BiLSTMSettings(hidden=6), 6, boundaries).cuda().eval()
    x, mask = some()
    x = x.float().cuda().requires_grad_()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found = torch.autograd.grad(encoder(x, mask.cuda()).square().sum(), x)[0]
    here = x.detach().cpu().requires_grad_()
    expected = torch.autograd.grad(encoder.cpu()(here, mask).square().sum(), here)[0]
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_an_lstm_stays_in_training_mode_which_cudnn_asks_for_before_a_backward_pass() -> None:
    encoder = build(BiLSTMSettings(hidden=6), 6, boundaries=False).eval()
    lstms = [m for m in encoder.modules() if isinstance(m, nn.LSTM)]
    assert len(lstms) == 2
    assert all(m.training for m in lstms)
    assert not encoder.inner.training
    assert all(m.dropout == 0 for m in lstms)
