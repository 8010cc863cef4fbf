"""The symbols that every vocabulary begins with.

A model never says the first two: its output layer begins at :data:`FIRST_SAID`, so that padding and
the beginning have no probability to be given.
"""

from __future__ import annotations

PAD, BOS, EOS, UNK = range(4)
NAMES = ("<pad>", "<bos>", "<eos>", "<unk>")
FIRST_SAID = EOS
