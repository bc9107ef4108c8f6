"""Cards that open: a number, the words and the formula behind it, its source, and a question.

``cards()`` shows the entries of ``data/cards.toml``, whose texts are computed like those of questions.
"""

import html
import tomllib
from pathlib import Path

from ..expressions import fill
from .base import rich
from .questions import _given as given
from .quiz import quiz

FILE = Path(__file__).parent.parent / "data" / "cards.toml"


class Cards:
    """All cards as HTML that needs no script; a page with our script makes their questions answer."""

    def __init__(self, cards):
        self.cards = cards

    def __repr__(self):
        return "\n".join(f"{card['title']}: {card['value']}, {card['what']}" for card in self.cards)

    def _repr_html_(self):
        return f'<div class="metrics">\n{"".join(map(_card, self.cards))}</div>'


def cards():
    """The four numbers of the landing page, each with what stands behind it.

    >>> print(cards())
    HBM bandwidth: 3.35 TB/s, H100 SXM, read plus write
    Interconnect bandwidth: 450 GB/s, NVLink 4 of an H100 SXM, one direction
    Memory capacity: 79.65 GiB, H100 SXM, as the driver reports it
    GPU-hours: 30.84 million, booked for Llama 3.1 405B, on H100
    """
    return Cards([_filled(card) for card in tomllib.loads(FILE.read_text("utf-8")).values()])


def _filled(card):
    names = given(card["given"])
    said = [fill(text, **names) for text in card["says"]]
    return card | {"value": fill(card["value"], **names), "what": fill(card["what"], **names), "says": said}


def _card(card):
    said = "\n".join(f"<p>{rich(text)}</p>" for text in (*card["says"], f"*Source:* {card['source']}."))
    question = quiz(card["quiz"])._repr_mimebundle_()[0]["text/html"]
    title, value, what = (html.escape(card[name]) for name in ("title", "value", "what"))
    return (f'<details class="metric"><summary>{title} <strong>{value}</strong> '
            f"<span>{what}</span></summary>\n{said}\n{question}\n</details>\n")
