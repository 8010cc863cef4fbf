"""Audit a classifier that knows nothing of parsimax: a model written by hand, trained in seconds.

    python experiments/audits/own_model.py --out out/audit

Texts are made up: each has a few words that decide its class, and words that do not. Written are
audit.json (everything), audit.csv (one row a measure) and texts.csv (one row a text).
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from torch import Tensor, nn

import parsimax as px
from parsimax.analysis.audit import Auditable, Search, Text, seed_control

GOOD = ["good", "great", "fine", "lovely", "superb", "charming"]
BAD = ["bad", "awful", "poor", "dull", "dreadful", "clumsy"]
PLAIN = [
    "the",
    "a",
    "film",
    "plot",
    "actor",
    "scene",
    "is",
    "was",
    "and",
    "of",
    "it",
    "this",
    "with",
    "very",
    "in",
    "for",
    "camera",
    "story",
]
WORDS = ["<pad>", *GOOD, *BAD, *PLAIN]
NUMBER = {word: i for i, word in enumerate(WORDS)}


def make_texts(count: int, seed: int) -> list[Text]:
    """Plain words with one to three good or bad ones among them."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        label = rng.randrange(2)
        words = rng.choices(PLAIN, k=rng.randint(3, 14))
        for word in rng.choices(GOOD if label else BAD, k=rng.randint(1, 3)):
            words.insert(rng.randint(0, len(words)), word)
        texts.append(Text([NUMBER[word] for word in words], words, label))
    return texts


class Classifier(nn.Module):
    """Embedding, bidirectional GRU, additive attention, linear layer: plain PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 16, padding_idx=0)
        self.encoder = nn.GRU(16, 16, batch_first=True, bidirectional=True)
        self.score = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        self.out = nn.Linear(32, 2)

    # The four functions that an audit needs:

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens (B, L) to vectors (B, L, E)."""
        vectors: Tensor = self.embedding(tokens)
        return vectors

    def encode(self, x: Tensor, mask: Tensor) -> Tensor:
        """Vectors to hidden states (B, L, H); packing keeps padding out of the recurrence."""
        packed = nn.utils.rnn.pack_padded_sequence(
            x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        h: Tensor = nn.utils.rnn.pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=x.shape[1]
        )[0]
        return h

    def attend(self, h: Tensor, mask: Tensor) -> Tensor:
        """Weights (B, L), zero at padding."""
        scores = self.score(h).squeeze(-1).masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, -1)

    def decode(self, h: Tensor, a: Tensor, mask: Tensor) -> Tensor:
        """Probabilities (B, C), not logits."""
        return torch.softmax(self.out((a.unsqueeze(1) @ h).squeeze(1)), -1)


def train(texts: list[Text], seed: int, epochs: int) -> Auditable:
    """Ordinary training; nothing here is special to audits."""
    torch.manual_seed(seed)
    model = Classifier()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    tokens = nn.utils.rnn.pad_sequence(
        [torch.tensor(list(text.tokens)) for text in texts], batch_first=True
    )
    labels = torch.tensor([text.label for text in texts])
    for _ in range(epochs):
        for index in torch.randperm(len(texts)).split(32):
            mask = tokens[index] != 0
            h = model.encode(model.embed(tokens[index]), mask)
            y = model.decode(h, model.attend(h, mask), mask)
            loss = nn.functional.nll_loss(y.clamp(min=1e-9).log(), labels[index])
            adam.zero_grad()
            loss.backward()
            adam.step()
    model.eval()  # dropout, if there were any, has to be off
    return Auditable(model.embed, model.encode, model.attend, model.decode, pad=0)


def main() -> None:
    """Train, audit, print the verdict, write the numbers."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/audit"))
    parser.add_argument("--texts", type=int, default=200, help="how many to train and to audit on")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="of the adversarial search")
    options = parser.parse_args()

    known, unseen = make_texts(options.texts, seed=0), make_texts(options.texts, seed=1)
    model = train(known, seed=0, epochs=options.epochs)
    seeds = seed_control(
        model, unseen, lambda seed: train(known, seed, options.epochs), seeds=[1, 2]
    )
    result = px.analysis.audit(
        model,
        unseen,
        searches=[
            Search(steps=options.steps),
            Search(steps=options.steps, mapping="entmax(alpha=1.5)"),
        ],
        controls=seeds,
    )
    print(f"accuracy {result.quality.accuracy:.3f}\n\n{result.verdict}")  # noqa: T201
    options.out.mkdir(parents=True, exist_ok=True)
    result.to_json(options.out / "audit.json")
    result.to_csv(options.out / "audit.csv")
    result.texts_to_csv(options.out / "texts.csv")


if __name__ == "__main__":
    main()
