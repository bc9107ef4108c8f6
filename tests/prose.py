"""The prose of the book: what a reader sees of a page without its code, and the numbers printed in it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\[([^\]]+)\]\(#num-([a-z0-9-]+)\)")
UNITS = (r"(?:%|[kMGTPE]?B(?:/s)?|[KMGT]iB(?:/s)?|[munµ]?s|min|hours?|days?|[kMG]?W|[kMGT]Wh|[MGT]bit(?:/s)?|Gb/s|"
         r"[GTPE]?FLOP(?:/s)?|TFLOPS?|tokens/s|GHz|MHz|GT/s|dollars)")
QUANTITY = re.compile(rf"(?<![\w.,/·-])(\d[\d,]*(?:\.\d+)?)(×|(?: ?{UNITS}))(?![\w/])")


@dataclass(frozen=True)
class Page:
    """A chapter or lesson: its path, its prose as paragraphs, and the source of its code cells."""

    path: Path
    paragraphs: tuple
    code: str

    @property
    def name(self):
        return str(self.path.relative_to(ROOT))

    @property
    def linked(self):
        """(display, id) of every number that links to its proof."""
        return [pair for paragraph in self.paragraphs for pair in LINK.findall(paragraph)]


def read(path):
    """The page at `path`, a notebook or a Markdown file."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text("utf-8"))["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    else:
        text, code = path.read_text("utf-8"), ""
    return Page(path, tuple(p for p in re.split(r"\n\s*\n", text) if p.strip()), code)


def pages():
    """Every page that carries prose of ours: lessons and the Markdown or notebooks under book/.

    The validation page is left out: all of it is computed, and its own test compares it.
    """
    found = [*ROOT.glob("lessons/*.ipynb"), *ROOT.glob("book/**/*.md"), *ROOT.glob("book/**/*.ipynb")]
    return [read(path) for path in sorted(found) if ".ipynb_checkpoints" not in path.parts and path.name != "validation.md"]


def bare(paragraph):
    """A paragraph without code, math, links' targets, and numbers that link to their proof."""
    text = LINK.sub(" ", paragraph)
    text = re.sub(r"(`+).*?\1", " ", text, flags=re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$|\$[^$]*\$", " ", text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text)


def unproved(page):
    """Quantities printed on a page without a proof, as text.

    A quantity needs none if the same value is linked to its proof elsewhere on the page, or was chosen by the author:
    it stands in a paragraph that says *Given*, which also covers later mentions of it.
    """
    given = {q for p in page.paragraphs if "*Given" in p for q in quantities(p)}
    proved = {q for display, _ in page.linked for q in quantities(display)}
    printed = {q: p for p in page.paragraphs for q in quantities(bare(p))}
    return {q: p for q, p in printed.items() if q not in given | proved}


def quantities(text):
    """The numbers with a unit in `text`, in one spelling.

    >>> sorted(quantities("140 GB at 450 GB/s take 311 ms, 7 %, not x86-64 or 3.5"))
    ['140 GB', '311 ms', '450 GB/s', '7 %']
    """
    return {f"{number} {unit.strip()}" for number, unit in QUANTITY.findall(text)}
