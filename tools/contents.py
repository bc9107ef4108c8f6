"""The landing page's table: from the contents, and from what each page says of itself."""

import html
import json
import os.path
import re
from dataclasses import dataclass
from pathlib import Path

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import ReferenceRole, SphinxDirective

SCORED = re.compile(r"\bquiz\(\s*[\"']([^\"']+)")


@dataclass(frozen=True)
class Study:
    """A page that takes time: name, title, opening question, minutes, hardware, and the keys of its questions."""

    name: str
    title: str
    question: str
    minutes: int
    hardware: str
    keys: tuple


def listed(root):
    """(caption, names of its pages) of every part in ``_toc.yml``."""
    parts = yaml.safe_load((root / "_toc.yml").read_text("utf-8")).get("parts", [])
    return [(part.get("caption", ""), [chapter["file"] for chapter in part["chapters"]]) for part in parts]


def source(root, name):
    """The file behind a page's name; None where there is none, of which Sphinx warns."""
    return next((path for path in (root / f"{name}.ipynb", root / f"{name}.md") if path.exists()), None)


def study(root, name):
    """What a page says of itself before its first section; None where it states no time.

    The question is the paragraph with one in bold type; minutes and hardware begin *Time:* and *Hardware:*.
    """
    path, keys = source(root, name), ()
    text = path.read_text("utf-8") if path else ""
    if path and path.suffix == ".ipynb":
        cells = [("".join(cell["source"]), cell["cell_type"]) for cell in json.loads(text)["cells"]]
        keys = tuple(dict.fromkeys(key for code, kind in cells if kind == "code" for key in SCORED.findall(code)))
        text = "\n\n".join(words for words, kind in cells if kind == "markdown")
    opening = re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]
    time = re.search(r"\*Time:\*\s*(\d+) minutes", opening)
    if not time:
        return None
    title = re.search(r"^# (.+)", opening, re.MULTILINE)[1]
    paragraph = next((p for p in opening.split("\n\n") if re.search(r"\*\*[^*]+\?\*\*", p)), "")
    question = re.sub(r"\*+|\[([^\]]+)\]\([^)]*\)", r"\1", paragraph).strip()
    hardware = re.search(r"\*Hardware:\*\s*([^.:;\n]+)", opening)
    return Study(name, title, question, int(time[1]), hardware[1].strip() if hardware else "", keys)


def parts(root):
    """(caption, its pages that take time) of every part that has one."""
    found = [(caption, [one for name in names if (one := study(root, name))]) for caption, names in listed(root)]
    return [(caption, pages) for caption, pages in found if pages]


def table(root, start):
    """The table as HTML, with links from the page named `start`; the column *you* is filled by progress.js."""
    rows, total = [], 0
    for caption, pages in parts(root):
        minutes = sum(page.minutes for page in pages)
        total += minutes
        rows.append(f'<tbody><tr><th scope="rowgroup" colspan="4">{html.escape(caption)}, {hours(minutes)}</th></tr>')
        rows += [row(page, start) for page in pages] + ["</tbody>"]
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("page and its question", "minutes", "hardware"))
    return (f'<p>In all {hours(total)}.</p>\n<table class="study">\n<thead><tr>{heads}'
            '<th scope="col" class="you">you</th></tr></thead>\n' + "\n".join(rows) + "\n</table>")


def row(page, start):
    link = os.path.relpath(f"{page.name}.html", os.path.dirname(start))
    return (f'<tr><th scope="row"><a href="{link}">{html.escape(page.title)}</a><br>{html.escape(page.question)}</th>'
            f"<td>{page.minutes}</td><td>{html.escape(page.hardware)}</td>"
            f'<td class="you" data-questions="{html.escape(" ".join(page.keys))}"></td></tr>')


def hours(minutes):
    """Minutes in words: whole hours and quarters, nothing finer.

    >>> hours(75), hours(60), hours(20), hours(560)
    ('1¼ hours', '1 hour', '20 minutes', '9¼ hours')
    """
    if minutes < 60:
        return f"{minutes} minutes"
    quarters = round(minutes / 15)
    number = f"{quarters // 4}{('', '¼', '½', '¾')[quarters % 4]}"
    return f"{number} hour{'' if number == '1' else 's'}"


class Table(SphinxDirective):
    """``{study}``: the table; its content is what a reader of the notebook sees in its place."""

    has_content = True

    def run(self):
        root = Path(self.env.srcdir)
        self.env.note_dependency(str(root / "_toc.yml"))
        for _, names in listed(root):
            for path in filter(None, (source(root, name) for name in names)):
                self.env.note_dependency(str(path))
        return [nodes.raw("", table(root, self.env.docname), format="html")]


class Reference(ReferenceRole):
    """``{study}`words <lessons/05_topology>```: a link to a page that is in the contents, else the words alone."""

    def run(self):
        root = Path(self.env.srcdir)
        self.env.note_dependency(str(root / "_toc.yml"))
        if not any(self.target in names for _, names in listed(root)):
            return [nodes.Text(self.title)], []
        link = addnodes.pending_xref(
            self.rawtext, nodes.inline("", self.title), refdoc=self.env.docname, refdomain="std", reftype="doc",
            reftarget=f"/{self.target}", refexplicit=True, refwarn=True)
        return [link], []
