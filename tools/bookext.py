"""What the book adds to Sphinx: the widgets' script and style, the numbers page, a trimmed MathJax."""

import importlib.util
import json
import re
import shutil
import tomllib
from pathlib import Path

LIB = Path(__file__).parent.parent / "lib" / "clusterlab"
NUMBERS = LIB / "data" / "numbers.toml"


def add_numbers(app, docname, source):
    """Complete the numbers page from the registry: one labelled entry a number, with its proof."""
    if docname != "book/reference/numbers":
        return
    app.env.note_dependency(str(NUMBERS))
    for name, number in tomllib.loads(NUMBERS.read_text("utf-8")).items():
        proof = [f"`{number['expression']}`"] if "expression" in number else []
        proof += [re.sub(r"https?://[^\s)]+[^\s).,;]", r"<\g<0>>", number["source"])] if "source" in number else []
        source[0] += f"\n(num-{name})=\n**{number['display']}**\n: {number['says']}. {' · '.join(proof)}\n"


def allow_labels_in_relative_links(app, doctree):
    """MyST accepts only heading slugs after `page.md#`; accept explicit labels too."""
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
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
    """Two corrections for readers who do not use a pointer.

    docutils makes a bibliography a `list` whose children are no list items: to a screen reader, an empty list. And a
    number's proof is a link on every number: reached by the list at the page's end, it need not be a tab stop.
    """
    body = context.get("body", "").replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    context["body"] = re.sub(r'<a (class="reference internal" href="[^"]*#num-)', r'<a tabindex="-1" \1', body)


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
    styles = [path.read_text("utf-8") for path in sorted(folder.glob("*.css"))]
    (out / "widgets.css").write_text("\n".join(styles), "utf-8")
    mathjax = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    fonts = "output/chtml/fonts"
    shutil.copytree(mathjax / fonts, out / "mathjax" / fonts, dirs_exist_ok=True)
    shutil.copy(mathjax / "tex-chtml.js", out / "mathjax" / "tex-chtml.js")


def setup(app):
    app.connect("config-inited", hide_buttons_that_lead_nowhere)
    app.connect("builder-inited", write_static)
    app.connect("source-read", add_numbers)
    app.connect("doctree-read", allow_labels_in_relative_links)
    app.connect("html-page-context", mend_page)
    app.config.mathjax_path = "mathjax/tex-chtml.js"
    app.add_js_file("widgets.js", loading_method="defer")
    app.add_css_file("widgets.css")
    app.add_css_file("book.css", priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
