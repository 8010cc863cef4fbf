"""What happens in a classifier with attention, as a small picture."""

from __future__ import annotations

from parsimax.viz.canvas import Canvas

_WORDS = ("a", "fine", "film")
_WEIGHTS = (0.08, 0.72, 0.20)
_WIDTH, _GAP = 92.0, 16.0


def diagram() -> str:
    """Words, hidden states, weights, prediction; nothing in it is measured."""
    canvas = Canvas()
    left, rows = 210.0, (14.0, 84.0, 158.0, 232.0)
    names = (
        ("words", "what a reader sees"),
        ("hidden states", "each mixes many words"),
        ("attention", "one weight a hidden state"),
        ("prediction", "from the weighted states"),
    )
    for y, (name, note) in zip(rows, names, strict=True):
        canvas.text(0, y - 8, name, bold=True, size=14)
        canvas.text(0, y + 11, note, role="muted", size=12)
    middles = [left + i * (_WIDTH + _GAP) + _WIDTH / 2 for i in range(len(_WORDS))]
    for start in middles:
        for end in middles:
            canvas.line((start, rows[0] + 18), (end, rows[1] - 18), role="grid", width=1.2)
    for middle, word, weight in zip(middles, _WORDS, _WEIGHTS, strict=True):
        x = middle - _WIDTH / 2
        canvas.box(x, rows[0] - 16, _WIDTH, 32, stroke="grid", fill="card", radius=6)
        canvas.text(middle, rows[0], word, anchor="middle", size=15)
        canvas.box(x, rows[1] - 16, _WIDTH, 32, fill="series-2", opacity=0.18, radius=6)
        canvas.text(middle, rows[1], "h", anchor="middle", size=15, role="muted")
        canvas.line((middle, rows[1] + 18), (middle, rows[2] - 22), role="grid", width=1.2)
        canvas.box(x, rows[2] - 18, _WIDTH, 36, stroke="grid", fill="card", radius=6)
        canvas.box(x, rows[2] - 18, _WIDTH * weight, 36, fill="accent", opacity=0.55, radius=6)
        canvas.text(middle, rows[2], f"{weight:.2f}", anchor="middle", size=14)
        canvas.line((middle, rows[2] + 20), (middles[1], rows[3] - 18), role="grid", width=1.2)
    canvas.box(middles[1] - 80, rows[3] - 16, 160, 32, stroke="grid", fill="card", radius=6)
    canvas.text(middles[1], rows[3], "positive, 93 %", anchor="middle", size=14)
    return canvas.to_svg(
        name="diagram",
        label="Every word reaches every hidden state; attention weighs hidden states; their "
        "weighted mean gives the prediction",
    )
