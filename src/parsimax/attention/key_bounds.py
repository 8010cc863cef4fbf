"""How far the keys of a cache reach, block by block: what a step of decoding needs to skip them.

A score of a key is at most that of the middle of its block, and as much more as the key can be
apart from it. Where this is too little for any weight, the keys need not be read, and nothing is
lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.backend import choose
from parsimax._core.validation import recorded, without_values

from .caches import check_integers, check_lengths, check_table, joined
from .inputs import check_tensor

BLOCKS = (8, 16, 32, 64)  # keys of a block
_WIDE = 512  # bytes of a key; blocks of wider ones have half of the keys
_LARGEST_HEAD = 256  # that there are kernels for
_WIDER = 1.0 + 2.0**-7  # so that no rounding makes a block narrower
_OF_SUMS = 2.0**-16  # of the middle: what sums of products may be off by


@dataclass(frozen=True, eq=False)
class KeyBounds:
    """What :func:`px.attention.decode` may know of the keys of a cache, to skip most of them.

    Of each block of keys of a cache (B, H, capacity, E), or of pages, a middle and how far a key is
    apart from it at most: with blocks of 64, 1/32 of the memory of the keys. Decoding with them
    gives what it gives without, as long as they are up to date: whoever writes keys says so by
    :meth:`update`. Whoever copies or reorders items or pages does so with the three tensors, which
    lie as the cache does. An item that shares a page has to have all keys of each of its blocks
    that are another's.

    Attributes:
        middle: (B, H, blocks of an item or a page, E), in the dtype of the keys.
        width: The same shape: how far a key is from the middle in each number, at most.
        radius: (B, H, blocks), float32: how far as a vector. Infinite where nothing is known.
        block: Keys of a block.

    >>> import torch, parsimax as px
    >>> k, v = torch.randn(2, 4, 256, 16), torch.randn(2, 4, 256, 16)
    >>> lengths = torch.tensor([200, 30])
    >>> bounds = px.attention.KeyBounds.of(k, lengths)
    >>> k[0, :, 200], k[1, :, 30] = torch.randn(4, 16), torch.randn(4, 16)  # a new key for each
    >>> lengths += 1
    >>> bounds.update(k, lengths)
    >>> q = torch.randn(2, 4, 1, 16)
    >>> px.attention.decode(q, k, v, lengths, bounds=bounds).shape
    torch.Size([2, 4, 1, 16])
    """

    middle: Tensor
    width: Tensor
    radius: Tensor
    block: int

    @classmethod
    def of(
        cls,
        k_cache: Tensor,
        lengths: Tensor | None = None,
        block_table: Tensor | None = None,
        *,
        block: int | None = None,
    ) -> KeyBounds:
        """Of all keys that a cache holds.

        Args:
            k_cache: Keys (B, H, capacity, E), or pages of them (pages, H, page size, E).
            lengths: Integers (B,): how many keys each item has; ``None`` is all.
            block_table: Integers (B, most pages of an item): the pages of each item. Without it,
                every page is taken for an item of its own. Of a page that nobody has, nothing is
                known, until it is filled.
            block: Keys of a block, 8, 16, 32 or 64; the size of pages is a multiple of it. By
                default the most that suits.
        """
        _check_cache(k_cache)
        block = _block_for(k_cache, block, block_table is not None)
        items, heads, length, size = k_cache.shape
        shape = items, heads, -(-length // block), size
        found = cls(
            k_cache.new_zeros(shape),
            k_cache.new_full(shape, torch.inf),
            k_cache.new_full(shape[:3], torch.inf, dtype=torch.float32),
            block,
        )
        if block_table is not None:
            _check_table(block_table)
            length *= block_table.shape[1]
        found.update(k_cache, lengths, block_table, new=length)
        return found

    def update(
        self,
        k_cache: Tensor,
        lengths: Tensor | None = None,
        block_table: Tensor | None = None,
        *,
        new: int = 1,
    ) -> None:
        """Take in the last ``new`` keys of each item, which are in the cache already.

        Lengths, which count them, are not read on the host where there is a kernel.
        """
        _check_cache(k_cache)
        check_bounds(self, k_cache, block_table is not None)
        if isinstance(new, bool) or not isinstance(new, int) or new < 0:
            raise ValueError(f"new must be a number of keys, at least 0, got {new!r}")
        items = k_cache.shape[0]
        capacity = k_cache.shape[2]
        if block_table is not None:
            _check_table(block_table)
            items, pages = block_table.shape
            capacity *= pages
        lengths = check_lengths(lengths, items, capacity)
        block_table = check_table(block_table, lengths, k_cache, new)
        if lengths is not None:
            lengths = lengths.to(k_cache.device)
        if block_table is not None:
            block_table = block_table.to(k_cache.device)
        run = _operator if recorded() or without_values(k_cache) else _update
        run(*self.tensors, k_cache.detach(), lengths, block_table, self.block, new)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What it holds."""
        return self.middle, self.width, self.radius


def check_bounds(bounds: object, k_cache: Tensor, paged: bool) -> None:
    """Bounds of a cache of this shape."""
    if not isinstance(bounds, KeyBounds):
        raise TypeError(f"bounds must be px.attention.KeyBounds, got {type(bounds).__name__}")
    items, heads, length, size = k_cache.shape
    if bounds.block not in BLOCKS:
        raise ValueError(f"bounds must have blocks of {_choice(BLOCKS)} keys, got {bounds.block!r}")
    expected = (items, heads, -(-length // bounds.block), size)
    if bounds.middle.shape != expected:
        raise ValueError(
            f"bounds are of another cache: with blocks of {bounds.block} keys, those of k_cache "
            f"{tuple(k_cache.shape)} have shape {expected}, got {tuple(bounds.middle.shape)}; make "
            "new ones by KeyBounds.of"
        )
    if paged and length % bounds.block:
        raise ValueError(
            f"bounds of {bounds.block} keys each do not fit pages of {length}: make them with the "
            "block_table, or with a block= that divides it"
        )
    if bounds.middle.device != k_cache.device:
        raise ValueError(f"bounds are on {bounds.middle.device}, and k_cache on {k_cache.device}")
    if bounds.middle.dtype != k_cache.dtype:
        raise TypeError(f"bounds are of {bounds.middle.dtype} keys, got {k_cache.dtype}")
    middle, width, radius = bounds.tensors
    whole = all(x.is_contiguous() and x.device == middle.device for x in bounds.tensors)
    alike = width.shape == expected and radius.shape == expected[:3]
    if not (whole and alike and width.dtype == middle.dtype and radius.dtype == torch.float32):
        raise ValueError(
            "bounds must be as KeyBounds.of makes them: without gaps, width as middle, and radius "
            "in float32 and without the last dimension; slices of them are to be copied"
        )


def _check_cache(k_cache: Tensor) -> None:
    check_tensor("k_cache", k_cache)
    if k_cache.ndim != 4:
        raise ValueError(
            "k_cache must have four dimensions (B, heads, length, size), got shape "
            f"{tuple(k_cache.shape)}"
        )


def _check_table(block_table: Tensor) -> None:
    check_integers(block_table, "block_table")
    if block_table.ndim != 2:
        raise ValueError(
            "block_table must have shape (B, most pages of an item), got "
            f"{tuple(block_table.shape)}"
        )


def _choice(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _block_for(k_cache: Tensor, block: int | None, paged: bool) -> int:
    length, size = k_cache.shape[2:]
    most = BLOCKS[-1] if size * k_cache.element_size() <= _WIDE else BLOCKS[-1] // 2
    if block is None:
        fitting = [b for b in BLOCKS if b <= most and not (paged and length % b)]
        if not fitting:
            raise ValueError(f"bounds need pages of a multiple of {BLOCKS[0]} keys, got {length}")
        return fitting[-1]
    if type(block) is not int or block not in BLOCKS or block > most:
        few = _choice([b for b in BLOCKS if b <= most])
        raise ValueError(f"block must be one of {few} for keys of this size, got {block!r}")
    if paged and length % block:
        raise ValueError(f"block must divide the size of pages, {length}, got {block}")
    return block


# --- who finds them -------------------------------------------------------------------------------


def _update(
    middle: Tensor,
    width: Tensor,
    radius: Tensor,
    k: Tensor,
    lengths: Tensor | None,
    table: Tensor | None,
    block: int,
    new: int,
) -> None:
    bounds = KeyBounds(middle, width, radius, block)
    if k.device.type == "cuda" and choose("auto", k) == "triton" and k.shape[3] <= _LARGEST_HEAD:
        by_kernel(bounds, k, lengths, table, new)
    else:
        plainly(bounds, k, lengths, table, new)


def by_kernel(
    bounds: KeyBounds, k: Tensor, lengths: Tensor | None, table: Tensor | None, new: int
) -> None:
    """Without a look at lengths."""
    from parsimax.kernels.gpu import on_device_of
    from parsimax.kernels.gpu.flash.decode.bounds import Bounds, update

    with on_device_of(k):
        update(Bounds(*bounds.tensors, bounds.block), k, lengths, table, new)


@torch.no_grad()
def plainly(
    bounds: KeyBounds, k: Tensor, lengths: Tensor | None, table: Tensor | None, new: int
) -> None:
    """Item by item; lengths are read."""
    block, (pages, _, page, _) = bounds.block, k.shape
    items, capacity = (pages, page) if table is None else (table.shape[0], page * table.shape[1])
    all_lengths = [capacity] * items if lengths is None else lengths.tolist()
    for item, length in enumerate(all_lengths):
        length = min(max(length, 0), capacity)
        first, stop = max(length - new, 0) // block, -(-length // block)
        if first >= stop:
            continue
        if table is None:
            keys = k[item, :, first * block : length]
            made = _bounds(keys, block, stop - first)
            for x, one in zip(bounds.tensors, made, strict=True):
                x[item, :, first:stop] = one.to(x.dtype)
        else:
            before = first * block // page
            columns = table[item, before : -(-length // page)]
            blocks = torch.arange(first, stop, device=k.device)
            where = columns[blocks * block // page - before]
            places = blocks % (page // block)
            keys = joined(k, columns[None])[0, :, first * block - before * page :]
            made = _bounds(keys[:, : length - first * block], block, stop - first)
            for x, one in zip(bounds.tensors, made, strict=True):
                x[where, :, places] = one.to(x.dtype).transpose(0, 1)


def _bounds(keys: Tensor, block: int, blocks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of (H, keys, E): middle and width (H, blocks, E), radius (H, blocks)."""
    work = torch.promote_types(keys.dtype, torch.float32)
    length = keys.shape[1]
    missing = blocks * block - length
    padded = torch.nn.functional.pad(keys.to(work), (0, 0, 0, missing))
    padded = padded.reshape(keys.shape[0], blocks, block, keys.shape[2])
    there = (torch.arange(blocks * block, device=keys.device) < length).view(blocks, block, 1)
    middle = (padded.sum(2) / there.sum(1)).to(keys.dtype)
    apart = torch.where(there, (padded - middle.to(work).unsqueeze(2)).abs(), 0.0)
    of_middle = middle.to(work).abs() * _OF_SUMS
    width = (apart.amax(2) + of_middle) * _WIDER
    radius = (_length(apart).amax(-1) + _length(of_middle)) * _WIDER
    return middle, width, radius


def _length(x: Tensor) -> Tensor:
    """Of vectors; their squares neither vanish nor overflow."""
    largest = x.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return (x / largest).square().sum(-1).sqrt() * largest.squeeze(-1)


_operator = torch.library.custom_op(
    "parsimax::update_key_bounds", _update, mutates_args=("middle", "width", "radius")
)


@_operator.register_fake
def _(*_arguments: object) -> None:
    return None
