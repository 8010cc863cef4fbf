"""Bounds of the keys of a cache: what they promise, what is refused, and decoding with them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import parsimax as px

KeyBounds = px.attention.KeyBounds


def draw(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@given(
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    block=st.sampled_from([8, 16, 32, 64]),
    length=st.integers(1, 100),
    far=st.sampled_from([0.0, 3.0, 200.0]),
)
def test_no_score_is_above_what_they_allow(dtype, block, length, far):
    k = draw(1, 2, 100, 12, dtype=dtype, seed=length) + far
    q = draw(5, 12, seed=1, dtype=torch.float64)
    bounds = KeyBounds.of(k, torch.tensor([length]), block=block)
    scores = q @ k[0, :, :length].double().mT  # (heads, queries, keys)
    middle, width = bounds.middle[0].double(), bounds.width[0].double()
    near = q @ middle.mT
    box = q.abs() @ width.mT
    ball = q.norm(dim=1)[:, None] * bounds.radius[0].double()[:, None, :]
    for number in range(-(-length // block)):
        here = scores[..., number * block : (number + 1) * block].amax(-1)
        for extra in (box, ball):
            assert (here <= near[..., number] + extra[..., number] + 1e-9).all()
    assert bounds.radius[..., -(-length // block) :].isinf().all()


@pytest.mark.parametrize("page", [None, 16])
def test_one_key_after_the_other(page):
    full = draw(3, 2, 64, 8)
    k = torch.full_like(full, torch.nan)
    lengths = torch.tensor([0, 14, 30])
    for item, length in enumerate(lengths.tolist()):
        k[item, :, :length] = full[item, :, :length]
    table = None if page is None else torch.randperm(12).view(3, 4)

    def laid():
        if page is None:
            return k
        out = torch.empty(12, 2, page, 8)
        out[table.flatten()] = k.unflatten(2, (-1, page)).transpose(1, 2).flatten(0, 1)
        return out

    bounds = KeyBounds.of(laid(), lengths, table, block=16)
    for new in (1, 1, 5, 0, 20, 1):
        for item in range(3):
            here = slice(int(lengths[item]), int(lengths[item]) + new)
            k[item, :, here] = full[item, :, here]
        lengths += new
        bounds.update(laid(), lengths, table, new=new)
        fresh = KeyBounds.of(laid(), lengths, table, block=16)
        for mine, theirs in zip(bounds.tensors, fresh.tensors, strict=True):
            torch.testing.assert_close(mine, theirs)
    assert bounds.radius.isfinite().sum() == 2 * (2 + 3 + 4)


def test_blocks_that_suit():
    assert KeyBounds.of(draw(1, 1, 70, 64)).block == 64
    assert KeyBounds.of(draw(1, 1, 70, 64)).middle.shape == (1, 1, 2, 64)
    assert KeyBounds.of(draw(1, 1, 70, 256)).block == 32  # of wide keys
    assert KeyBounds.of(draw(1, 1, 70, 256, dtype=torch.bfloat16)).block == 64
    table = torch.tensor([[0, 1]])
    assert KeyBounds.of(draw(2, 1, 48, 8), None, table).block == 16
    assert KeyBounds.of(draw(2, 1, 48, 8), None, table, block=8).middle.shape == (2, 1, 6, 8)
    without = KeyBounds.of(draw(2, 1, 48, 8), block=16)  # every page for itself
    with_table = KeyBounds.of(draw(2, 1, 48, 8), None, table)
    for mine, theirs in zip(without.tensors, with_table.tensors, strict=True):
        assert torch.equal(mine, theirs)


def test_decoding_with_them_is_decoding():
    q, k, v = draw(2, 4, 1, 16, seed=1), draw(2, 2, 100, 16), draw(2, 2, 100, 16, seed=2)
    lengths = torch.tensor([100, 37])
    plain = px.attention.decode(q, k, v, lengths, enable_gqa=True)
    bounds = KeyBounds.of(k, lengths)
    found = px.attention.decode(q, k, v, lengths, enable_gqa=True, bounds=bounds)
    assert torch.equal(found, plain)


def test_keys_that_learn_leave_no_trace():
    k = draw(2, 2, 70, 8).requires_grad_()
    bounds = KeyBounds.of(k)
    assert not any(x.requires_grad for x in bounds.tensors)


def test_compiled():
    k, v = draw(2, 2, 100, 16), draw(2, 2, 100, 16, seed=2)
    bounds, same = (KeyBounds.of(k, torch.tensor([40, 63])) for _ in range(2))

    def step(q, k, v, lengths):
        bounds.update(k, lengths)
        return px.attention.decode(q, k, v, lengths, bounds=bounds)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for now in (1, 2):
        lengths = torch.tensor([40, 63]) + now
        q = draw(2, 2, 1, 16, seed=now)
        torch.testing.assert_close(
            compiled(q, k, v, lengths), px.attention.decode(q, k, v, lengths)
        )
        same.update(k, lengths)
        for mine, theirs in zip(bounds.tensors, same.tensors, strict=True):
            assert torch.equal(mine, theirs)


def test_operators_are_what_torch_expects():
    k = draw(2, 2, 70, 8)
    tensors = KeyBounds.of(k).tensors
    torch.library.opcheck(
        torch.ops.parsimax.update_key_bounds.default,
        (*tensors, k, torch.tensor([70, 3]), None, 64, 5),
    )


# --- errors ---------------------------------------------------------------------------------------


def test_of_what_they_cannot_be():
    with pytest.raises(ValueError, match="four dimensions"):
        KeyBounds.of(draw(2, 70, 8))
    with pytest.raises(TypeError, match="k_cache must have a floating-point dtype"):
        KeyBounds.of(draw(2, 1, 70, 8).long())
    with pytest.raises(TypeError, match=r"k_cache must be a torch\.Tensor, got list"):
        KeyBounds.of([[1.0]])
    with pytest.raises(ValueError, match="block must be one of 8, 16, 32, 64 for"):
        KeyBounds.of(draw(2, 1, 70, 8), block=10)
    with pytest.raises(ValueError, match="block must be one of 8, 16, 32 for"):
        KeyBounds.of(draw(2, 1, 70, 256), block=64)
    table = torch.tensor([[0, 1]])
    with pytest.raises(ValueError, match="pages of a multiple of 8 keys, got 12"):
        KeyBounds.of(draw(2, 1, 12, 8), None, table)
    with pytest.raises(ValueError, match="block must divide the size of pages, 48, got 32"):
        KeyBounds.of(draw(2, 1, 48, 8), None, table, block=32)
    with pytest.raises(ValueError, match="from 0 to 70"):
        KeyBounds.of(draw(2, 1, 70, 8), torch.tensor([71, 0]))
    with pytest.raises(ValueError, match="a page of the cache"):
        KeyBounds.of(draw(2, 1, 48, 8), None, torch.tensor([[0, 2]]))
    with pytest.raises(ValueError, match="most pages of an item"):
        KeyBounds.of(draw(2, 1, 48, 8), None, torch.tensor([0, 1]))


def test_tables_that_are_none():
    pages, lengths = draw(4, 1, 48, 8), torch.tensor([90, 96])
    for table, error in (
        (torch.tensor([[0.0, 1.0], [2.0, 3.0]]), "integer dtype"),
        ([[0, 1], [2, 3]], "tensor of integers"),
    ):
        with pytest.raises(TypeError, match=error):
            KeyBounds.of(pages, lengths, table)
        with pytest.raises(TypeError, match=error):
            KeyBounds.of(pages, block=16).update(pages, lengths, table)


def test_pages_that_a_window_hides_may_have_been_given_back():
    pages, lengths = draw(4, 1, 48, 8), torch.tensor([90, 96])
    bounds = KeyBounds.of(pages, block=16)
    table = torch.tensor([[-1, 1], [-1, 3]])
    bounds.update(pages, lengths, table, new=1)
    with pytest.raises(ValueError, match="a page of the cache"):
        bounds.update(pages, lengths, table, new=60)


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        k, lengths = torch.empty(2, 2, 70, 8), torch.zeros(2, dtype=torch.int64)
        assert KeyBounds.of(k, lengths).middle.shape == (2, 2, 2, 8)


def test_parts_of_bounds_are_copied_first():
    k = draw(2, 4, 70, 8)
    whole = KeyBounds.of(k)
    parts = [x[:, 2:] for x in whole.tensors]
    with pytest.raises(ValueError, match="without gaps"):
        KeyBounds(*parts, whole.block).update(k[:, 2:])
    half = KeyBounds(*[x.contiguous() for x in parts], whole.block)
    half.update(k[:, 2:], new=70)
    for mine, theirs in zip(half.tensors, parts, strict=True):
        assert torch.equal(mine, theirs)
    middle, width, radius = whole.tensors
    for wrong in (
        (middle, width[..., :4].contiguous(), radius),
        (middle, width, radius[:1]),
        (middle, width, radius.half()),
        (middle, width.half(), radius),
    ):
        with pytest.raises(ValueError, match=r"as KeyBounds\.of makes them"):
            KeyBounds(*wrong, whole.block).update(k)
    for block in (0, 48, 128):
        with pytest.raises(ValueError, match="bounds must have blocks of 8, 16, 32, 64 keys"):
            KeyBounds(*whole.tensors, block).update(k)


def test_of_another_cache():
    k = draw(2, 2, 70, 8)
    q, bounds, lengths = draw(2, 2, 1, 8), KeyBounds.of(draw(2, 2, 140, 8)), torch.tensor([3, 4])
    with pytest.raises(ValueError, match="bounds are of another cache"):
        px.attention.decode(q, k, k, lengths, bounds=bounds)
    with pytest.raises(ValueError, match="bounds are of another cache"):
        bounds.update(k, lengths)
    with pytest.raises(TypeError, match=r"bfloat16 keys, got .*float32"):
        px.attention.decode(q, k, k, lengths, bounds=KeyBounds.of(k.bfloat16()))
    with pytest.raises(TypeError, match=r"bounds must be .*KeyBounds, got Tensor"):
        px.attention.decode(q, k, k, lengths, bounds=k)
    for new in (-1, 1.0, True):
        with pytest.raises(ValueError, match="new must be a number of keys"):
            KeyBounds.of(k).update(k, lengths, new=new)
    pages = draw(4, 1, 48, 8)
    with pytest.raises(ValueError, match="do not fit pages of 48"):
        px.attention.decode(
            draw(2, 1, 1, 8), pages, pages, lengths, torch.tensor([[0, 1], [2, 3]]),
            bounds=KeyBounds.of(pages),
        )  # fmt: skip
