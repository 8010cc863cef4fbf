"""``parsimax demo``: the family of mappings on one page."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def demo(
    *,
    out: Annotated[Path, Parameter(help="Directory that receives the page.")] = Path("out"),
    sentence: Annotated[
        str | None, Parameter(help="Words to spread attention over (2 to 24 of them).")
    ] = None,
) -> None:
    """Draw the family of mappings into one self-contained HTML page."""
    from parsimax.viz import write_demo

    page = write_demo(out, sentence=sentence).resolve()
    print(f"The family, drawn on one page ({page.stat().st_size / 1000:.0f} kB):")
    print(f"  {page}")
    print(f"  {page.as_uri()}")
