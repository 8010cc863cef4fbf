"""Small hand-written classifiers, in float64, and texts for them."""

from __future__ import annotations

import torch
from torch import nn

import parsimax as px
from parsimax.analysis.audit.auditable import Auditable, Text


class Classifier(nn.Module):
    """Embedding, BiLSTM, additive attention without a query, linear decoder."""

    def __init__(self, vocabulary=30, width=6, hidden=5, classes=2, mapping="softmax", seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.project = nn.Linear(2 * hidden, 4)
        self.score = nn.Linear(4, 1, bias=False)
        self.out = nn.Linear(2 * hidden, classes)
        self.mapping = px.mappings.parse(mapping)
        with torch.no_grad():  # freshly initialised scores are nearly uniform
            self.score.weight.mul_(6)
            self.out.weight.mul_(6)

    def embed(self, tokens):
        return self.embedding(tokens)

    def encode(self, x, mask):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        h, _ = nn.utils.rnn.pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=x.shape[1]
        )
        return h

    def attend(self, h, mask):
        scores = self.score(torch.tanh(self.project(h))).squeeze(-1)
        return self.mapping(scores, mask=mask)

    def decode(self, h, a, mask):
        return torch.softmax(self.out((a.unsqueeze(1) @ h).squeeze(1)), -1)

    def auditable(self):
        return Auditable(self.embed, self.encode, self.attend, self.decode)


def model(**options):
    return Classifier(**options).double().eval()


def texts(lengths, vocabulary=30, seed=0, labels=2):
    generator = torch.Generator().manual_seed(seed)
    found = []
    for n in lengths:
        tokens = torch.randint(1, vocabulary, (n,), generator=generator).tolist()
        label = int(torch.randint(0, labels, (1,), generator=generator))
        found.append(Text(tokens, [f"w{t}" for t in tokens], label))
    return found
