"""px.attention.decode: a contiguous and a paged cache against loops, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.attention import loops
from torch import Tensor

import parsimax as px
from parsimax.attention import decoding

B, HQ, H, E, EV, PAGE = 3, 4, 2, 3, 2, 4
LENGTHS = (12, 1, 7)


def rand(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def caches() -> tuple[Tensor, Tensor]:
    """Twelve places, of which an item may use fewer; the others hold NaN, which must not count."""
    k, v = rand(1, B, H, 12, E), rand(2, B, H, 12, EV)
    for i, length in enumerate(LENGTHS):
        k[i, :, length:] = torch.nan
        v[i, :, length:] = torch.nan
    return k, v


def pages_of(cache: Tensor) -> tuple[Tensor, Tensor]:
    """The same cache in pages that lie in another order, with pages nobody uses between them."""
    order = torch.tensor([[7, 0, 9], [3, -5, 100], [1, 8, 99]])
    pages = torch.full((10, H, PAGE, cache.shape[-1]), torch.nan, dtype=cache.dtype)
    for i, row in enumerate(order.tolist()):
        for j, page in enumerate(row):
            if j * PAGE < LENGTHS[i]:
                pages[page] = cache[i, :, j * PAGE : (j + 1) * PAGE]
    return pages, order


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, (2, 0), 1])
@pytest.mark.parametrize("mask", ["none", "bool", "added"])
def test_equals_loops_over_each_item_cut_at_its_length(
    monkeypatch: pytest.MonkeyPatch,
    traced: bool,
    paged: bool,
    queries: int,
    causal: bool,
    window: Any,
    mask: str,
) -> None:
    q = 3 * rand(0, B, HQ, queries, E)
    k, v = caches()
    alpha = 1 + rand(3, HQ).sigmoid()
    noise = rand(4, B, 1, queries, 12)
    attn_mask = {"none": None, "bool": noise > -0.5, "added": noise}[mask]
    if traced:  # the path of compiled code and of GPUs, which may not look at lengths
        monkeypatch.setattr(decoding, "_readable", lambda lengths: False)
    (k_cache, table), (v_cache, _) = (pages_of(k), pages_of(v)) if paged else ((k, None), (v, None))
    found = px.attention.decode(
        q,
        k_cache,
        v_cache,
        torch.tensor(LENGTHS),
        table,
        attn_mask=attn_mask,
        is_causal=causal,
        enable_gqa=True,
        alpha=alpha,
        window=window,
    )
    for i, length in enumerate(LENGTHS):
        expected, _ = loops.attention(
            q[i : i + 1],
            k[i : i + 1, :, :length],
            v[i : i + 1, :, :length],
            lambda b, h, i: float(alpha[h]),
            mask=None if attn_mask is None else attn_mask[i : i + 1, :, :, :length],
            causal=causal,
            align="bottom-right",
            window=window,
        )
        torch.testing.assert_close(found[i : i + 1], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("paged", [False, True])
def test_without_lengths_the_whole_cache_counts(paged: bool) -> None:
    q, k, v = 3 * rand(0, 2, HQ, 2, E), rand(1, 2, H, 8, E), rand(2, 2, H, 8, EV)
    expected = px.attention(
        q, k, v, is_causal=True, enable_gqa=True, causal_align="bottom-right", alpha=1.3
    )
    table = None
    if paged:
        table = torch.tensor([[0, 1], [3, 2]], dtype=torch.int32)
        k, v = (torch.stack([x[0, :, :4], x[0, :, 4:], x[1, :, 4:], x[1, :, :4]]) for x in (k, v))
    found = px.attention.decode(q, k, v, block_table=table, enable_gqa=True, alpha=1.3)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.uint16])
def test_integers_of_any_size(dtype: torch.dtype) -> None:
    """A capacity and a number of pages that the small ones cannot hold."""
    q, k, v = rand(0, B, HQ, 1, E), rand(1, B, H, 300, E), rand(2, B, H, 300, EV)
    lengths = torch.tensor([100, 0, 7])
    found = px.attention.decode(q, k, v, lengths.to(dtype), enable_gqa=True)
    assert torch.equal(found, px.attention.decode(q, k, v, lengths, enable_gqa=True))
    pages, table = rand(1, 300, H, 100, E), torch.tensor([[3, 1], [0, 2], [9, 120]])
    found = px.attention.decode(q, pages, pages, lengths, table.to(dtype), enable_gqa=True)
    right = px.attention.decode(q, pages, pages, lengths, table, enable_gqa=True)
    assert torch.equal(found, right)
    found = px.attention(q, k, v, key_lengths=lengths.to(dtype), enable_gqa=True)
    assert torch.equal(found, px.attention(q, k, v, key_lengths=lengths, enable_gqa=True))


def test_a_cache_of_no_pages_and_pages_of_no_keys() -> None:
    q, nothing = rand(0, B, H, 1, E), torch.zeros(B, dtype=torch.long)
    table = torch.full((B, 3), -1)
    for pages in (rand(1, 0, H, PAGE, E), rand(1, 5, H, 0, E)):
        assert not px.attention.decode(q, pages, pages, nothing, table).any()
    with pytest.raises(ValueError, match="block_table must be from 0 to 4"):
        px.attention.decode(q, rand(1, 5, H, PAGE, E), rand(1, 5, H, PAGE, E), nothing + 1, table)


def test_an_empty_cache_gives_zeros_and_gradients_reach_the_pages() -> None:
    q, k = rand(0, 2, 2, 1, E), rand(1, 5, 2, PAGE, E).requires_grad_()
    table = torch.tensor([[4, -1], [2, 0]])
    out = px.attention.decode(q, k, k, torch.tensor([0, 6]), table)
    assert not out[0].any()
    (gradient,) = torch.autograd.grad(out.square().sum(), k)
    assert gradient[2].any()
    assert gradient[0, :, :2].any()
    assert not gradient[0, :, 2:].any()
    assert not gradient[[1, 3, 4]].any()


@pytest.mark.parametrize("readable", [True, False])
def test_alpha_and_mappings_of_items(monkeypatch: pytest.MonkeyPatch, readable: bool) -> None:
    if not readable:
        monkeypatch.setattr(decoding, "_readable", lambda lengths: False)
    q, (k, v) = 3 * rand(0, B, HQ, 1, E), caches()
    lam = -rand(3, B, 1, 1, 1).exp()
    choices: list[dict[str, Any]] = [
        {"alpha": 1 - lam},
        {"mapping": px.mappings.Sparsegen(lam)},
        {"mapping": "normmax(alpha=3.0)"},
    ]
    for choice in choices:
        found = px.attention.decode(q, k, v, torch.tensor(LENGTHS), enable_gqa=True, **choice)
        for i, length in enumerate(LENGTHS):
            one: Any = {"mapping": choice.get("mapping")}
            if "alpha" in choice:
                one = {"alpha": choice["alpha"][i : i + 1]}
            elif not isinstance(one["mapping"], str):
                one = {"mapping": px.mappings.Sparsegen(lam[i : i + 1])}
            cut = (q[i : i + 1], k[i : i + 1, :, :length], v[i : i + 1, :, :length])
            torch.testing.assert_close(found[i : i + 1], px.attention(*cut, enable_gqa=True, **one))


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("window", [None, 3])
def test_a_mapping_with_a_number_for_each_key_is_cut_with_the_keys(
    monkeypatch: pytest.MonkeyPatch, paged: bool, readable: bool, window: int | None
) -> None:
    if not readable:
        monkeypatch.setattr(decoding, "_readable", lambda lengths: False)
    q, (k, v), table = 3 * rand(0, B, HQ, 1, E), caches(), None
    given = (k, v)
    if paged:
        (pages, table), (values, _) = pages_of(k), pages_of(v)
        given = (pages, values)
    capacity = k.shape[2] if table is None else pages.shape[2] * table.shape[1]
    upper = 0.3 + 0.3 * rand(5, B, 1, 1, capacity).sigmoid()
    upper[..., 0] = 1  # for an item with one key
    lengths = torch.tensor(LENGTHS)
    found = px.attention.decode(
        q, *given, lengths, table, enable_gqa=True, window=window,
        mapping=px.mappings.ConstrainedSparsemax(upper),
    )  # fmt: skip
    for i, length in enumerate(LENGTHS):
        cut = (q[i : i + 1], k[i : i + 1, :, :length], v[i : i + 1, :, :length])
        bounds = px.mappings.ConstrainedSparsemax(upper[i : i + 1, ..., :length])
        one = px.attention(
            *cut, enable_gqa=True, mapping=bounds, is_causal=True, window=window,
            causal_align="bottom-right",
        )  # fmt: skip
        torch.testing.assert_close(found[i : i + 1], one)


def test_compiled_with_lengths_that_change() -> None:
    torch._dynamo.reset()
    q, (k, v) = 3 * rand(0, B, HQ, 2, E), caches()
    (pages, table), (values, _) = pages_of(k), pages_of(v)

    def function(q: Tensor, lengths: Tensor) -> Tensor:
        return px.attention.decode(q, pages, values, lengths, table, enable_gqa=True, window=3)

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for lengths in (torch.tensor(LENGTHS), torch.tensor(LENGTHS) - 1):
        torch.testing.assert_close(compiled(q, lengths), function(q, lengths))
    # elsewhere an error, here NaN for the item, and for no other
    for wrong in (13, -1):
        bad = compiled(q, torch.tensor([wrong, 1, 7]))
        assert bad[0].isnan().all()
        assert bad[1:].isfinite().all()


Q, K = torch.zeros(2, 2, 1, 8), torch.zeros(2, 2, 6, 8)
TABLE = torch.tensor([[0, 1], [1, 0]])
TYPE_ERRORS: list[tuple[str, dict[str, Any]]] = [
    ("q must be a torch.Tensor, got list", {"q": [1.0]}),
    ("v_cache must have a floating-point dtype", {"v_cache": K.long()}),
    ("q, k_cache and v_cache must have the same dtype", {"k_cache": K.double()}),
    ("lengths must be a tensor of integers or None, got list", {"lengths": [1, 2]}),
    ("lengths must have an integer dtype, got torch.float32", {"lengths": torch.ones(2)}),
    ("block_table must have an integer dtype, got torch.bool", {"block_table": TABLE.bool()}),
    ("is_causal must be True or False", {"is_causal": 1}),
    ("attn_mask must be a tensor or None, got str", {"attn_mask": "causal"}),
]
VALUE_ERRORS: list[tuple[str, dict[str, Any]]] = [
    (r"k_cache must have four dimensions .* \(2, 6, 8\)", {"k_cache": K[0]}),
    ("same batch, heads and length", {"v_cache": K[:, :, :5]}),
    ("q and k_cache must have the same batch.*block_table", {"q": Q[:1]}),
    ("one length for each of the 2 items", {"lengths": torch.ones(3).int()}),
    ("lengths must be from 0 to 6.*got 7", {"lengths": torch.tensor([7, 1])}),
    (
        "lengths must be from 0 to 12.*got 13",
        {"lengths": torch.tensor([13, 1]), "block_table": TABLE},
    ),
    (r"block_table must have shape \(2, most pages", {"block_table": TABLE[0]}),
    ("block_table must be where q is, cpu, .* got meta", {"block_table": TABLE.to("meta")}),
    ("lengths must be where q is, cpu, .* got meta", {"lengths": TABLE[0].to("meta")}),
    ("q, k_cache, v_cache must be on one device", {"k_cache": K.to("meta")}),
    (r"q and k_cache must have the same size .* got 7 in q .* and 8 in k_cache", {"q": Q[..., :7]}),
    (
        "upper of ConstrainedSparsemax must have one number, or one for each of the 6 keys",
        {
            "mapping": px.mappings.ConstrainedSparsemax(torch.full((5,), 0.5)),
            "lengths": torch.tensor([5, 5]),
        },
    ),
    (
        "block_table must be from 0 to 1, a page of the cache, got 2",
        {"block_table": TABLE + 1, "lengths": torch.tensor([12, 3])},
    ),
    (r"broadcast to the scores \(2, 2, 1, 6\)", {"attn_mask": torch.ones(2, 5)}),
    (
        r"alpha must have shape \(2,\).* got shape \(3, 2, 1, 1\)",
        {"alpha": torch.full((3, 2, 1, 1), 1.3), "lengths": torch.tensor([3, 6])},
    ),
    (
        r"lam of Sparsegen must have the batch of q, 2, or 1, got shape \(3, 1, 1, 1\)",
        {
            "mapping": px.mappings.Sparsegen(torch.zeros(3, 1, 1, 1)),
            "lengths": torch.tensor([3, 6]),
        },
    ),
    ("window must be None, an int", {"window": 1.5, "lengths": torch.tensor([1, 2])}),
]


@pytest.mark.parametrize(("message", "wrong"), TYPE_ERRORS + VALUE_ERRORS)
def test_errors_name_the_argument(message: str, wrong: dict[str, Any]) -> None:
    arguments = {"q": Q, "k_cache": K, "v_cache": K, **wrong}
    kind = TypeError if any(message == text for text, _ in TYPE_ERRORS) else ValueError
    with pytest.raises(kind, match=message):
        px.attention.decode(**arguments)


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("queries", [1, 3])
def test_pages_that_a_window_hides_may_have_been_given_back(
    monkeypatch: pytest.MonkeyPatch, readable: bool, queries: int
) -> None:
    if not readable:
        monkeypatch.setattr(decoding, "_readable", lambda lengths: False)
    q, mask = rand(0, B, HQ, queries, E), rand(4, B, 1, queries, 12)
    k, v = caches()
    options: dict[str, Any] = {"attn_mask": mask, "enable_gqa": True, "window": (2, 0)}
    lengths = torch.tensor(LENGTHS)
    right = px.attention.decode(q, k, v, lengths, **options)
    (k_pages, table), (v_pages, _) = pages_of(k), pages_of(v)
    gone = 0
    for i, length in enumerate(LENGTHS):
        for j in range(max(0, length - queries - 2) // PAGE):
            k_pages[table[i, j]] = v_pages[table[i, j]] = torch.nan
            table[i, j] = 1000
            gone += 1
    assert gone
    found = px.attention.decode(q, k_pages, v_pages, lengths, table, **options)
    torch.testing.assert_close(found, right)
    with pytest.raises(ValueError, match="every value of block_table"):
        px.attention.decode(q, k_pages, v_pages, lengths, table, attn_mask=mask, enable_gqa=True)
