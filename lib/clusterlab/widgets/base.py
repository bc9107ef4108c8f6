"""What all widgets share: one JavaScript module, data computed by Python, and HTML that stands alone.

A widget is a module without imports, ``export default { render({ model, el }) }``. anywidget runs it in a live
notebook; in the built page ``book.js`` does. Both give it the same traits:

- `data`: what Python computed; it never changes;
- `state`: what the reader did, a small dictionary that the page keeps and Python sees;
- `others`: the states of the widgets listed in ``data["watch"]``, by key (only `standing` has them).
"""

import html
import json
import re
from pathlib import Path

import anywidget
import traitlets

FOLDER = Path(__file__).parent
SHOWN = {}  # the widget last shown for each key, as the live counterpart of a page
STYLE = (FOLDER / "base.css").read_text("utf-8")


class Widget(anywidget.AnyWidget):
    """A widget whose stored output is plain, deterministic HTML; `module` names its .js file."""

    module = ""
    data = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)

    def __init_subclass__(cls, **kwargs):
        if "module" in vars(cls):  # traits added to an instance make a subclass too
            own = FOLDER / f"{cls.module}.css"
            cls._esm = (FOLDER / f"{cls.module}.js").read_text("utf-8")
            cls._css = STYLE + (own.read_text("utf-8") if own.exists() else "")
        super().__init_subclass__(**kwargs)

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        SHOWN[self.data["key"]] = self
        self.observe(_publish, "state")
        _publish()

    def fallback(self):
        """HTML that reads well where no script runs: an untrusted notebook, GitHub, a printed page."""
        raise NotImplementedError

    def __repr__(self):
        return f"{type(self).__name__}({self.data['key']!r})"

    def _repr_mimebundle_(self, **kwargs):
        bundle, metadata = super()._repr_mimebundle_(**kwargs)
        data = json.dumps(self.data, ensure_ascii=False, sort_keys=True)
        for sign in "<>&":  # nothing in the data can end the element it travels in
            data = data.replace(sign, f"\\u{ord(sign):04x}")
        bundle["text/plain"] = repr(self)
        bundle["text/html"] = (
            f'<div class="clusterlab-widget" data-widget="{self.module}">\n{self.fallback()}\n'
            f'<script type="application/json">{data}</script>\n</div>')
        return bundle, metadata


def _publish(change=None):
    """Every widget that watches others sees their states."""
    for widget in SHOWN.values():
        if "watch" in widget.data:
            widget.others = {key: SHOWN[key].state for key in widget.data["watch"] if key in SHOWN}


_HREF = r"(?:#|https://|[\w./-]+\.(?:ipynb|md|html)\b)[\w./#?=&;%+-]*"
_LINK = re.compile(rf"\[([^\]<]+)\]\(({_HREF})\)")
_STRONG = re.compile(r"\*\*([^\s*<](?:[^<]*?[^\s<])?)\*\*")
_EMPHASIS = re.compile(r"(?<![*\w])\*([^\s*<](?:[^*<]*?[^\s*<])?)\*(?![*\w])")


def rich(text):
    """The HTML of a plain text with `code`, *emphasis*, **strong** and [links](#anchor); all else is escaped.

    >>> rich("`n < 4` is **not** *so*: [see](#ring)")
    '<code>n &lt; 4</code> is <strong>not</strong> <em>so</em>: <a href="#ring">see</a>'
    """
    pieces = re.split(r"`([^`]+)`", html.escape(text, quote=False))
    for i, piece in enumerate(pieces):
        if i % 2:
            pieces[i] = f"<code>{piece}</code>"
            continue
        piece = _STRONG.sub(r"<strong>\1</strong>", _LINK.sub(r'<a href="\2">\1</a>', piece))
        pieces[i] = _EMPHASIS.sub(r"<em>\1</em>", piece)
    return "".join(pieces).strip()
