"""What the book adds to Sphinx: the widgets' script and style, the numbers page, a trimmed MathJax."""

import importlib.util
import json
import re
import shutil
import tomllib
from pathlib import Path

import contents
import library
import recorded
from docutils import nodes
from sphinx import addnodes
from sphinx.domains.python import PyObject

LIB = Path(__file__).parent.parent / "lib" / "clusterlab"
NUMBERS = LIB / "data" / "numbers"


def add_numbers(app, docname, source):
    """Complete the numbers page from the registry: one labelled entry a number, with its proof."""
    if docname != "book/reference/numbers":
        return
    registry = {}
    for path in sorted(NUMBERS.glob("*.toml")):
        app.env.note_dependency(str(path))
        registry |= tomllib.loads(path.read_text("utf-8"))
    for name, number in registry.items():
        proof = [f"`{number['expression']}`"] if "expression" in number else []
        proof += [re.sub(r"https?://[^\s)]+[^\s).,;]", r"<\g<0>>", number["source"])] if "source" in number else []
        source[0] += f"\n(num-{name})=\n**{number['display']}**\n: {number['says']}. {' · '.join(proof)}\n"


def add_library(app, docname, source):
    """Complete the pages of the library from its docstrings."""
    folder, _, name = docname.rpartition("/")
    if folder == "book/reference" and name in ("library", *library.ROOMS):
        for room in library.ROOMS if name == "library" else [name]:
            for path in library.files(room):
                app.env.note_dependency(str(path))
        source[0] += library.page(name)


class Signature(PyObject):
    """A Python name whose signature is one element; Sphinx's own makes several of each argument."""

    allow_nesting = True

    def handle_signature(self, sig, signode):
        owner = self.env.ref_context.get("py:class")
        name = ".".join(filter(None, [owner, sig.partition("(")[0]]))
        signode["module"], signode["class"], signode["fullname"] = self.options.get("module"), owner, name
        signode += addnodes.desc_name(sig, sig)
        return name, ""

    def get_index_text(self, modname, name_cls):
        return f"{name_cls[0]} ({modname})"


def allow_labels_in_relative_links(app, doctree):
    """MyST accepts only heading slugs after `page.md#`; accept explicit labels and the ids of headings too."""
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for section in doctree.findall(nodes.section):
        for id in section["ids"]:
            slugs.setdefault(id, (0, id, section[0].astext()))
    for name, explicit in doctree.nametypes.items():
        if explicit and doctree.nameids.get(name):
            slugs.setdefault(name, (0, doctree.nameids[name], name))


def hide_buttons_that_lead_nowhere(app, config):
    """No repository and launch buttons until `_config.yml` names a real repository."""
    options = config.html_theme_options
    if "//github.com/example/" in options.get("repository_url", ""):
        for name in ("repository_url", "launch_buttons", "use_repository_button", "use_issues_button"):
            options.pop(name, None)


def mend_page(app, pagename, templatename, context, doctree):
    """Links between pages in a widget's HTML, and two corrections for readers who do not use a pointer.

    A widget's link leads to a source, as in JupyterLab; here it leads to the page made of it. docutils makes a
    bibliography a `list` whose children are no list items: to a screen reader, an empty list. And a number's proof is
    a link on every number: reached by the list at the page's end, it need not be a tab stop.
    """
    body = context.get("body", "").replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    body = re.sub(r'(href=\\?"(?!\w+:|[./]*_downloads)[^"\\#]*)\.(?:ipynb|md)(?=[#"\\])', r"\1.html", body)
    context["body"] = re.sub(r'<a (class="reference internal" href="[^"]*#num-)', r'<a tabindex="-1" \1', body)


def add_progress(app, pagename, templatename, context, doctree):
    """The landing page alone tells how far a reader is in all others."""
    if pagename == app.config.root_doc:
        app.add_js_file("progress.js", loading_method="defer")


def lighten_library(app, pagename, templatename, context, doctree):
    """The library's pages without Sphinx's element around each word of code: a browser has thousands less to check."""
    if pagename.removeprefix("book/reference/") in library.ROOMS:
        context["body"] = re.sub(r'<span class="pre">([^<]*)</span>', r"\1", context["body"])


def write_static(app):
    """Write widgets.js (every module as text, then the page's side), widgets.css and MathJax with its fonts.

    ES modules do not load over file://, so their text travels inside one classic script.
    """
    out = Path(app.outdir, "_static")
    out.mkdir(parents=True, exist_ok=True)
    folder = LIB / "widgets"
    modules = {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.js"))}
    mount = modules.pop("book", "")
    script = f"(() => {{\nconst modules = {json.dumps(modules, ensure_ascii=False)};\n{mount}\n}})();\n"
    (out / "widgets.js").write_text(script, "utf-8")
    styles = [path.read_text("utf-8") for path in sorted(folder.glob("*.css"), key=lambda path: (path.stem != "base", path.stem))]
    (out / "widgets.css").write_text("\n".join(styles), "utf-8")
    mathjax = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    fonts = "output/chtml/fonts"
    shutil.copytree(mathjax / fonts, out / "mathjax" / fonts, dirs_exist_ok=True)
    shutil.copy(mathjax / "tex-chtml.js", out / "mathjax" / "tex-chtml.js")


def setup(app):
    app.connect("config-inited", hide_buttons_that_lead_nowhere)
    app.connect("builder-inited", write_static)
    app.connect("source-read", add_numbers)
    app.connect("source-read", add_library)
    app.connect("doctree-read", allow_labels_in_relative_links)
    app.connect("html-page-context", mend_page)
    app.connect("html-page-context", lighten_library)
    app.connect("html-page-context", add_progress)
    app.add_directive("study", contents.Table)
    app.add_directive("recorded", recorded.Recorded)
    app.add_role("study", contents.Reference())
    for kind in ("function", "class", "method", "property"):
        app.add_directive_to_domain("py", kind, Signature, override=True)
    app.config.mathjax_path = "mathjax/tex-chtml.js"
    app.add_js_file("widgets.js", loading_method="defer")
    app.add_css_file("widgets.css")
    app.add_css_file("book.css", priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
