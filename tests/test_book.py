"""The built book: complete, linked, alone, usable narrow and dark, and the same when built again."""

import gzip
import hashlib
import re
import shutil
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import bookext
import pytest
from conftest import ROOT, build_book

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src", "embed": "src"}


class Page(HTMLParser):
    """What a page links to, loads and names."""

    def __init__(self, path):
        super().__init__()
        self.path, self.links, self.loads, self.ids, self.images = path, [], [], set(), []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag in LOADING and attributes.get(LOADING[tag]):
            self.loads.append(attributes[LOADING[tag]])
        if tag == "link" and set((attributes.get("rel") or "").split()) & {"stylesheet", "preload", "icon", "modulepreload"}:
            self.loads.append(attributes["href"])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag == "img":
            self.images.append(attributes)

    def handle_data(self, data):
        if self.cdata_elem == "script":  # a widget's links travel as JSON
            self.links += re.findall(r'\\u003ca href=\\"([^"\\]+)', data)


@pytest.fixture(scope="session")
def pages(built):
    return {path.relative_to(built).as_posix(): Page(path) for path in sorted(built.rglob("*.html"))
            if "_static" not in path.parts}


def lessons(pages):
    return [name for name in pages if name.startswith(("lessons/", "book/"))]


def outside(reference):
    return bool(re.match(r"(?:[a-z]+:)?//", reference, re.IGNORECASE))


def dead_links(pages, root):
    dead = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            if not target.is_file():
                dead.append(f"{name}: {link}")
            elif target.suffix == ".html" and parts.fragment:
                there = pages.get(target.relative_to(root.resolve()).as_posix())
                if there and unquote(parts.fragment) not in there.ids:
                    dead.append(f"{name}: {link}")
    return dead


def digest(root):
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*")) if path.is_file()}


def test_every_page_of_the_contents_is_built(pages):
    contents = re.findall(r"(?:file|root): (\S+)", (ROOT / "_toc.yml").read_text("utf-8"))
    assert [name for name in contents if f"{name}.html" not in pages] == []


def test_links_resolve(pages, built):
    assert dead_links(pages, built) == []


def test_nothing_is_loaded_from_outside(pages, built):
    loads = [f"{name}: {load}" for name, page in pages.items() for load in page.loads if outside(load)]
    for sheet in built.rglob("*.css"):
        text = sheet.read_text("utf-8")
        urls = re.findall(r"""url\(\s*["']?([^"')]+)""", text) + re.findall(r"""@import\s+["']([^"']+)""", text)
        loads += [f"{sheet.name}: {url}" for url in urls if outside(url)]
    assert loads == []


def test_images_have_alternative_text(pages):
    assert [f"{name}: {image.get('src', '')[:60]}" for name, page in pages.items() for image in page.images
            if not (image.get("alt") or "").strip() and image.get("role") != "presentation"] == []


@pytest.mark.slow
def test_a_second_build_is_identical(built, tmp_path):
    assert build_book(tmp_path).returncode == 0
    first, second = digest(built), digest(tmp_path / "_build" / "html")
    assert sorted(first.items() ^ second.items()) == []


def sources(tmp_path):
    """A copy of what the book is built from, for a test to break."""
    keep = ("_config.yml", "_toc.yml", "book", "lessons", "lib", "tools")
    for name in keep:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("fault, complaint", [
    ("\nSee [there](#num-no-such-number).\n", "num-no-such-number"),
    ("\nSee [there](no-such-page.md).\n", "no-such-page"),
    ("\n### A heading level skipped\n", "Non-consecutive header level"),
    ("\n```{no-such-directive}\n```\n", "no-such-directive"),
])
def test_a_fault_in_the_text_fails_the_build(tmp_path, fault, complaint):
    page = sources(tmp_path) / "book" / "reference" / "bibliography.md"
    page.write_text(page.read_text("utf-8") + fault, "utf-8")
    done = build_book(tmp_path / "out", tmp_path)
    assert done.returncode != 0
    assert complaint in done.stdout + done.stderr


def test_the_link_checker_sees_a_dead_link(tmp_path):
    (tmp_path / "a.html").write_text('<p id="x"><a href="a.html#x">1</a><a href="#y">2</a><a href="b.html">3</a>'
                                     r'<script type="application/json">"\u003ca href=\"c.html#z\">4"</script>')
    page = Page(tmp_path / "a.html")
    assert dead_links({"a.html": page}, tmp_path) == ["a.html: #y", "a.html: b.html", "a.html: c.html#z"]


@pytest.mark.parametrize("link, there", [
    ('<a href="../lessons/06.ipynb#ring">', '<a href="../lessons/06.html#ring">'),
    (r'"\u003ca href=\"../reference/notation.md\"\u003e"', r'"\u003ca href=\"../reference/notation.html\"\u003e"'),
    ('<a href="https://example.org/a.ipynb">', None), ('<a href="../_downloads/12/a.ipynb">', None), ("a.ipynb#b", None),
])
def test_a_link_to_a_source_leads_to_its_page(link, there):
    context = {"body": link}
    bookext.mend_page(None, "lessons/01", "page.html", context, None)
    assert context["body"] == (there or link)


@pytest.mark.slow
def test_numbers_page_is_completed_from_the_registry(tmp_path):
    root = sources(tmp_path)
    numbers = root / "lib/clusterlab/data/numbers"
    shutil.rmtree(numbers)
    numbers.mkdir()
    (numbers / "some.toml").write_text(
        '[sum]\nsays = "Two and two"\nexpression = "2 + 2"\ndisplay = "four"\n'
        '[seen]\nsays = "Looked up"\nsource = "A datasheet"\ndisplay = "five"\n', "utf-8")
    (root / "_toc.yml").write_text(
        "format: jb-book\nroot: book/index\nchapters:\n- file: book/reference/numbers\n", "utf-8")
    (root / "book/reference/numbers.md").write_text("# Numbers\n", "utf-8")
    (root / "book/index.ipynb").unlink()
    index = root / "book/index.md"
    index.write_text("# Book\n\n[four](#num-sum), [five](reference/numbers.md#num-seen)\n", "utf-8")
    done = build_book(tmp_path / "out", root)
    assert done.returncode == 0, done.stdout + done.stderr
    html = tmp_path / "out" / "_build" / "html" / "book"
    assert {"num-sum", "num-seen"} <= Page(html / "reference" / "numbers.html").ids
    assert {"reference/numbers.html#num-sum", "reference/numbers.html#num-seen"} <= set(Page(html / "index.html").links)


@pytest.mark.parametrize("owner, buttons", [("example", False), ("somebody", True)])
def test_buttons_lead_to_a_real_repository_or_are_absent(owner, buttons):
    options = {"repository_url": f"https://github.com/{owner}/book", "launch_buttons": {}, "use_repository_button": True}
    bookext.hide_buttons_that_lead_nowhere(None, SimpleNamespace(html_theme_options=options))
    assert bool(options) == buttons


MATH = {"exclude": [["mjx-container"]]}  # MathJax's thousands of elements, in the colour of the text; one page below has them


@pytest.fixture
def visit(open_page, axe):
    """visit(name) -> what is wrong with a page: in the light, in the dark (colours alone differ), on a narrow screen."""
    def visit(name, context=MATH):
        page = open_page(name)
        page.wait_for_timeout(300)
        wrong = page.errors + page.outside + axe(page, context)
        page.add_style_tag(content="* { transition: none !important }")  # colours halfway from light to dark
        page.emulate_media(color_scheme="dark")
        page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
        wrong += [f"dark: {finding}" for finding in axe(page, context, rules=["color-contrast"])]
        page.set_viewport_size({"width": 360, "height": 900})
        page.wait_for_timeout(100)
        width = page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
        page.close()
        return wrong + ([f"{width} pixels wide on a screen of 360"] if width > 360 else [])
    return visit


@pytest.mark.browser
@pytest.mark.timeout(1200)
def test_pages_are_alone_accessible_and_narrow(pages, visit):
    found = {name: wrong for name in lessons(pages) if (wrong := visit(name))}
    assert found == {}


@pytest.mark.browser
def test_a_page_is_accessible_with_its_mathematics(visit):
    assert visit("lessons/03_infiniband", {"include": [["body"]]}) == []


@pytest.mark.browser
def test_pages_open_from_a_server_too(pages, open_page):
    found = {}
    for name in lessons(pages):
        page = open_page(name, scheme="http")
        if page.errors or page.outside:
            found[name] = page.errors + page.outside
        page.close()
    assert found == {}


@pytest.mark.browser
@pytest.mark.parametrize("fault, words", [
    ("document.querySelector('article').insertAdjacentHTML('beforeend', '<p style=\"color:#999;background:#aaa\">hardly legible</p>')", "color-contrast"),
    ("document.querySelector('article').insertAdjacentHTML('beforeend', '<button></button>')", "button-name"),
])
def test_what_is_not_accessible_is_found(open_page, axe, fault, words):
    page = open_page("book/reference/bibliography")
    page.evaluate(fault)
    assert any(words in finding for finding in axe(page, MATH))


@pytest.mark.browser
def test_the_browser_refuses_and_reports_what_is_outside(open_page):
    page = open_page("book/index")
    assert page.errors == [] and page.outside == []
    page.evaluate("fetch('https://example.org/x').catch(() => console.error('refused'))")
    page.evaluate("setTimeout(() => { throw new Error('ours') })")
    page.wait_for_timeout(300)
    assert page.outside == ["https://example.org/x"]
    assert any("refused" in error for error in page.errors) and any("ours" in error for error in page.errors)


OURS = ("_static/widgets.js", "_static/widgets.css", "_static/book.css", "_static/progress.js")


def loaded(page):
    """The scripts, styles and fonts a page loads; images count elsewhere."""
    files = {(page.path.parent / unquote(urlsplit(load).path)).resolve() for load in page.loads if not outside(load)}
    return {path for path in files if path.suffix in (".js", ".css", ".woff2")}


def compressed(*paths):
    return sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in paths)


def test_a_lesson_adds_little_to_an_empty_page(pages, built):
    theme = loaded(pages["search.html"]) | {(built / "_static/mathjax/tex-chtml.js").resolve()}
    theme -= {(built / name).resolve() for name in OURS}
    empty = compressed(pages["search.html"].path, *theme)
    for name in lessons(pages):
        page = pages[name]
        added = compressed(page.path, *loaded(page) - theme) - compressed(pages["search.html"].path)
        print(f"{name}: {added / 1e3:.0f} kB compressed beside the theme's {empty / 1e3:.0f} kB")
        assert added <= 100e3


def test_sealed_results_are_closed(pages):
    """What a notebook seals is a native `<details>`, closed, that opens without script."""
    for path in ROOT.glob("lessons/*.ipynb"):
        seals = path.read_text("utf-8").count('"hide-output"')
        html = pages[f"lessons/{path.stem}.html"].path.read_text("utf-8")
        assert len(re.findall(r'<details class="[^"]*\bhide\b[^"]*">', html)) >= seals
