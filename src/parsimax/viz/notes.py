"""What each mapping is, in a formula and a few sentences, for the demo page."""

from dataclasses import dataclass

import parsimax as px


@dataclass(frozen=True)
class Note:
    """An explanation as HTML: ``problem`` is the regulariser, ``solution`` the closed form."""

    problem: str
    solution: str
    text: str


NOTES = {
    "softmax": Note(
        problem="Ω(<i>p</i>) = Σ<sub><i>i</i></sub> <i>p<sub>i</sub></i> log <i>p<sub>i</sub></i>",
        solution="<i>p<sub>i</sub></i> = exp(<i>z<sub>i</sub></i>) / "
        "Σ<sub><i>j</i></sub> exp(<i>z<sub>j</sub></i>)",
        text="The usual choice. Every word gets something, however low its score: softmax never "
        "says no.",
    ),
    "sparsemax": Note(
        problem="Ω(<i>p</i>) = ½ (‖<i>p</i>‖² − 1)",
        solution="<i>p<sub>i</sub></i> = max(<i>z<sub>i</sub></i> − τ, 0)",
        text="The point of the simplex that is nearest to the scores. One threshold τ is taken "
        "from every score, and what falls below it is exactly zero.",
    ),
    "entmax": Note(
        problem="Ω(<i>p</i>) = Σ<sub><i>i</i></sub> (<i>p<sub>i</sub></i><sup>α</sup> − "
        "<i>p<sub>i</sub></i>) / (α(α − 1))",
        solution="<i>p<sub>i</sub></i> = max((α − 1) <i>z<sub>i</sub></i> − τ, 0)"
        "<sup>1/(α−1)</sup>",
        text="One dial from softmax (α = 1) through sparsemax (α = 2) and on. Between the two it "
        "is sparse and still smooth at the corners. α can be learned, one for each head if you "
        "like.",
    ),
    "sparsegen": Note(
        problem="Ω(<i>p</i>) = ½ (1 − λ) (‖<i>p</i>‖² − 1), &nbsp;λ &lt; 1",
        solution="<i>p</i> = sparsemax(<i>z</i> / (1 − λ))",
        text="Sparsemax with a temperature. λ near 1 leaves a single word; a negative λ shares "
        "more evenly; λ = 0 is sparsemax.",
    ),
    "normmax": Note(
        problem="Ω(<i>p</i>) = ‖<i>p</i>‖<sub>α</sub>, &nbsp;α &gt; 1",
        solution="<i>p<sub>i</sub></i> ∝ max(<i>z<sub>i</sub></i> − τ, 0)<sup>1/(α−1)</sup>, "
        "&nbsp;Σ<sub><i>i</i></sub> max(<i>z<sub>i</sub></i> − τ, 0)<sup>α/(α−1)</sup> = 1",
        text="A norm in place of an entropy. It chooses which words count, and as α grows it "
        "treats those it chose more and more alike.",
    ),
    "budget": Note(
        problem="Ω(<i>p</i>) = ½ ‖<i>p</i>‖², &nbsp;0 ≤ <i>p<sub>i</sub></i> ≤ 1, "
        "&nbsp;Σ<sub><i>i</i></sub> <i>p<sub>i</sub></i> = <i>k</i>",
        solution="<i>p<sub>i</sub></i> = min(max(<i>z<sub>i</sub></i> − τ, 0), 1)",
        text="A relaxed choice of <i>k</i> words. Each can have at most 1, and together they have "
        "exactly <i>k</i>, so the clear winners reach 1 and the rest compete for what is left.",
    ),
    "fusedmax": Note(
        problem="Ω(<i>p</i>) = ½ ‖<i>p</i>‖² + λ Σ<sub><i>i</i></sub> "
        "|<i>p</i><sub><i>i</i>+1</sub> − <i>p<sub>i</sub></i>|",
        solution="<i>p</i> = sparsemax(<i>v</i>), &nbsp;<i>v</i> = the scores, smoothed by total "
        "variation",
        text="Sparsemax that pays for every step between neighbours, so words that stand together "
        "get the same: it chooses phrases. λ = 0 is sparsemax.",
    ),
    "oscarmax": Note(
        problem="Ω(<i>p</i>) = ½ ‖<i>p</i>‖² + λ Σ<sub><i>i</i>&lt;<i>j</i></sub> "
        "max(<i>p<sub>i</sub></i>, <i>p<sub>j</sub></i>)",
        solution="<i>p</i> = sparsemax(<i>v</i>), &nbsp;<i>v</i> = the sorted scores + λ<i>i</i>, "
        "pooled until they descend",
        text="Words of similar scores get the same, wherever they stand in the sentence. λ = 0 is "
        "sparsemax.",
    ),
    "constrained_softmax": Note(
        problem="Ω(<i>p</i>) = Σ<sub><i>i</i></sub> <i>p<sub>i</sub></i> log "
        "<i>p<sub>i</sub></i>, &nbsp;<i>p</i> ≤ <i>u</i>",
        solution="<i>p<sub>i</sub></i> = min(<i>u<sub>i</sub></i>, exp(<i>z<sub>i</sub></i> − "
        "<i>c</i>))",
        text="Softmax with an upper bound for every word. What a word may not have goes to the "
        "others.",
    ),
    "constrained_sparsemax": Note(
        problem="Ω(<i>p</i>) = ½ (‖<i>p</i>‖² − 1), &nbsp;<i>l</i> ≤ <i>p</i> ≤ <i>u</i>",
        solution="<i>p<sub>i</sub></i> = min(max(<i>z<sub>i</sub></i> − τ, <i>l<sub>i</sub></i>), "
        "<i>u<sub>i</sub></i>)",
        text="Sparsemax between bounds. With bounds that shrink by what was given before, it is "
        "attention that uses words up: <code>FertilityAttention</code>.",
    ),
}


def note_for(name: str) -> Note:
    """Return the note of a registered mapping; one without a note shows its docstring's opening."""
    if name in NOTES:
        return NOTES[name]
    doc = (px.mappings.registry()[name].__doc__ or "").strip()
    return Note(problem="", solution="", text=doc.split("\n\n")[0])
