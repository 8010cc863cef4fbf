"""Audit a Hugging Face classifier: a small BERT, made from a config, trained in a minute.

    pip install 'parsimax[huggingface,viz]'
    python experiments/audits/bert.py --out out/bert

Nothing is downloaded: the model is random before it is trained, and the texts are made up. With a
model of your own, only two lines change:

    model = AutoModelForSequenceClassification.from_pretrained(path)
    texts = from_texts(AutoTokenizer.from_pretrained(path), strings, labels)

Written are audit.html, a page to read, and audit.json, audit.csv and texts.csv.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import parsimax as px
from parsimax.analysis.audit import Search, Text, from_model
from parsimax.viz.audit import Facts, write_page

GOOD = ("good", "great", "fine", "lovely")
BAD = ("bad", "awful", "poor", "dull")
PLAIN = ("the", "a", "film", "plot", "actor", "scene", "is", "was", "and", "of", "it", "very")
WORDS = ("[PAD]", "[CLS]", "[SEP]", *GOOD, *BAD, *PLAIN)
NUMBER = {word: i for i, word in enumerate(WORDS)}


def make_texts(count: int, seed: int) -> list[Text]:
    """Plain words with one that decides, between the two tokens that BERT wants."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        label = rng.randrange(2)
        words = rng.choices(PLAIN, k=rng.randint(3, 12))
        words.insert(rng.randint(0, len(words)), rng.choice(GOOD if label else BAD))
        words = ["[CLS]", *words, "[SEP]"]
        texts.append(Text([NUMBER[word] for word in words], words, label))
    return texts


def make_model(seed: int = 0) -> BertForSequenceClassification:
    """A BERT of two layers."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=2,
    )
    return BertForSequenceClassification(config)


def train(model: BertForSequenceClassification, texts: list[Text], epochs: int) -> None:
    """Ordinary training with the model's own loss."""
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    tokens = nn.utils.rnn.pad_sequence(
        [torch.tensor(list(text.tokens)) for text in texts], batch_first=True
    )
    labels = torch.tensor([text.label for text in texts])
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(texts)).split(32):
            mask = (tokens[index] != 0).long()
            out = model(input_ids=tokens[index], attention_mask=mask, labels=labels[index])
            adam.zero_grad()
            out.loss.backward()
            adam.step()
    model.eval()


def main() -> None:
    """Train, audit, print the verdict, write the page and the numbers."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bert"))
    parser.add_argument("--texts", type=int, default=300, help="how many to train and to audit on")
    parser.add_argument("--epochs", type=int, default=15, help="0 audits the random model")
    parser.add_argument("--steps", type=int, default=200, help="of the adversarial search")
    parser.add_argument("--head", type=int, help="one head of the last layer, not the mean of all")
    options = parser.parse_args()

    known, unseen = make_texts(options.texts, seed=0), make_texts(options.texts, seed=1)
    model = make_model()
    train(model, known, options.epochs)
    result = px.analysis.audit(
        from_model(model, head=options.head), unseen, searches=[Search(steps=options.steps)]
    )
    print(f"accuracy {result.quality.accuracy:.3f}\n\n{result.verdict}")  # noqa: T201
    facts = Facts("a small BERT", "attention of [CLS] in the last layer", "made-up reviews",
                  labels=("bad", "good"))  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    write_page(options.out / "audit.html", result, facts)
    result.to_json(options.out / "audit.json")
    result.to_csv(options.out / "audit.csv")
    result.texts_to_csv(options.out / "texts.csv")


if __name__ == "__main__":
    main()
