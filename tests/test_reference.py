"""The landing page and the reference part: made from the data they speak of, complete, and light enough to read."""

import inspect
import json
import re
import subprocess
import sys
import tomllib
from importlib import import_module

import contents
import library
import pytest
from clusterlab.widgets import cards, catalogue, questions
from conftest import ROOT

REFERENCE = ROOT / "book" / "reference"
DATA = ROOT / "lib" / "clusterlab" / "data"


# ---- the library's pages ---------------------------------------------------------------------------------------------

NAMES = {  # what lessons and outside checks rely on, by the module that defines it
    "units": "format_bytes format_binary format_rate format_seconds format_flops",
    "hardware": "accelerator link node accelerators links nodes",
    "components": "Link Accelerator Node Cluster",
    "transformer": "Transformer model",
    "compute": "forward_flops training_flops mfu attainable_flops training_seconds",
    "plan": "Plan",
    "memory": "Recipe model_state_bytes device_memory largest_micro_batch",
    "activations": "activation_bytes_per_layer",
    "collectives": """bus_factor steps bytes_sent collective_seconds all_reduce_seconds send_seconds
                      hierarchical_all_reduce_seconds""",
    "pipeline": "simulate",
    "topology": "fat_tree rail_optimized rail_only dragonfly torus superpod Fabric",
    "routing": "traffic route",
    "training": "estimate search",
    "reliability": """system_mtbf failure_probability young_interval daly_interval optimal_interval goodput
                      simulate_goodput""",
    "extremes": "expected_max spares",
    "numbers": "show",
    "run.ranks": "launch",
    "run.links": "Paced counted",
    "run.device": "device synchronize",
    "run.allreduce": "ring halving_doubling recursive_doubling tree double_tree parameter_server",
    "widgets.quiz": "quiz",
    "widgets.forecast": "forecast",
}
PAGES = {name: library.page(name) for name in library.ROOMS}


def signatures(text):
    """{(module, name): signature} of every function and class on a page; their methods stand inside them."""
    found = re.findall(r"^:{8}\{py:\w+\} (\w+)(.*)\n:module: clusterlab\.([\w.]+)$", text, re.MULTILINE)
    return {(module, name): name + rest for name, rest, module in found}


def test_every_name_that_others_rely_on_is_there():
    shown = signatures("\n".join(PAGES.values()))
    names = [(module, name) for module, names in NAMES.items() for name in names.split()]
    assert [one for one in names if one not in shown] == []


def test_signatures_are_those_python_sees():
    """The page reads the source; Python's own inspection of the imported mathematics is the other witness."""
    seen = 0
    for (module, name), shown in signatures(PAGES["library_math"] + "\n" + PAGES["library_cluster"]).items():
        thing = getattr(import_module(f"clusterlab.{module}"), name, None)
        if inspect.isfunction(thing) or inspect.isclass(thing) and "__init__" in vars(thing):
            arguments = shown.removeprefix(name).strip("()")
            names = re.findall(r"(?:^|, )\*{0,2}(\w+)", re.sub(r"=(\([^()]*\)|[^,]*)", "", arguments))
            own = [p for p in inspect.signature(thing).parameters if not p.startswith("_")]
            assert names == own, f"{module}.{name}: the page shows {shown}"
            seen += 1
    assert seen > 100


@pytest.mark.parametrize("page", library.ROOMS)
def test_every_documented_name_of_a_room_is_shown(page):
    shown = signatures(PAGES[page])
    for path in library.files(page):
        module = ".".join(path.relative_to(library.LIB).with_suffix("").parts)
        documented = re.compile(r'^(?:def|class) ([a-zA-Z]\w*).*(?:\n .*)*?:\n    """', re.MULTILINE)
        names = documented.findall(path.read_text("utf-8"))
        assert [name for name in names if (module, name) not in shown] == [], module


def test_every_module_stands_on_one_page():
    shown = [path for page in library.ROOMS for path in library.files(page)]
    there = [path for folder in (".", "run", "widgets") for path in (library.LIB / folder).glob("*.py")]
    assert sorted(shown) == sorted(path for path in there if not path.stem.startswith("__"))


def test_making_the_pages_imports_nothing_of_ours():
    code = ("import sys; sys.path.insert(0, 'tools'); import library; [library.page(p) for p in library.ROOMS]; "
            "print(sorted({'torch', 'numpy', 'clusterlab', 'anywidget'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_a_docstring_stays_text():
    text = library.markdown("It is 10**9 and `a|b` for $5, <b>, [x] and __init__.\n\n    y = x\n\n>>> f('<')\n1")
    assert text == ("It is 10\\*\\*9 and `a|b` for \\$5, \\<b>, \\[x] and \\_\\_init\\_\\_.\n\n<pre>y = x</pre>\n\n"
                    "<pre>&gt;&gt;&gt; f('&lt;')\n1</pre>")


# ---- the hardware catalogue ------------------------------------------------------------------------------------------


def data(name):
    return tomllib.loads((DATA / f"{name}.toml").read_text("utf-8"))


def column(table, head):
    return {row[0]: row[table.data["heads"].index(head)] for row in table.data["rows"]}


def value(text):
    return None if text == "–" else float(text.replace(",", ""))


def test_accelerators_are_those_of_the_data():
    table = catalogue("accelerators")
    rows = data("accelerators")
    assert list(column(table, "part")) == list(rows)
    label = {name: row.get("label_gib") or row["label_gb"] * 1e9 / 2**30 for name, row in rows.items()}
    reported = {name: row["memory_mib"] / 1024 if "memory_mib" in row else label[name] for name, row in rows.items()}
    memory = {name: value(text) for name, text in column(table, "memory, GiB").items()}
    assert memory == pytest.approx(reported, rel=1e-4)
    for head, of_row in [
        ("memory, TB/s", lambda r: r["memory_bandwidth"] / 1e12),
        ("16-bit, dense TFLOP/s", lambda r: r["dense_flops"].get("bf16", r["dense_flops"].get("fp16")) / 1e12),
        ("8-bit, dense TFLOP/s", lambda r: r["dense_flops"].get("fp8", 0) / 1e12 or None),
        ("4-bit, dense TFLOP/s", lambda r: r["dense_flops"].get("fp4", 0) / 1e12 or None),
        ("power, W", lambda r: r.get("power")),
    ]:
        shown = column(table, head)
        for name, row in rows.items():
            expected = of_row(row)
            assert value(shown[name]) == (None if expected is None else pytest.approx(expected, rel=1e-4)), (head, name)
    sold = column(table, "as sold")
    assert all(sold[name] == f"{row['label_gb']} GB" for name, row in rows.items() if "label_gb" in row)
    assert sold["TPU v5p"] == "95 GiB" and sold["H100 SXM"] == "80 GB"


LINKS = {  # one direction of one device, GB/s, and one lane: from the generations' published lanes and line codes
    "NVLink 4": (18 * 25, None), "PCIe 5.0 x16": (16 * 32 * 128 / 130 / 8, 32), "InfiniBand NDR": (50, 106.25),
    "InfiniBand FDR": (4 * 14.0625 * 64 / 66 / 8, 14.0625), "Infinity Fabric MI300X": (7 * 64, None),
    "ICI v5p": (600, None),
}


def test_links_count_one_direction():
    table = catalogue("links")
    one, both, lane = (column(table, head) for head in ("GB/s one direction", "GB/s as sold, both", "Gb/s a lane"))
    for name, (rate, signalling) in LINKS.items():
        assert value(one[name]) == pytest.approx(rate, rel=1e-4)
        assert value(both[name]) == pytest.approx(2 * rate, rel=1e-4)
        assert signalling is None or value(lane[name]) == pytest.approx(signalling, rel=1e-4)
    assert not [name for name in one if name.startswith("PCIe") and not name.endswith("x16")]


def test_nodes_and_prices():
    nodes, parts = catalogue("nodes"), catalogue("parts")
    assert list(column(nodes, "node")) == list(data("nodes")) and list(column(parts, "part")) == list(data("prices"))
    pair = column(nodes, "pair, GB/s one direction")
    shown = [pair[name] for name in ("MI300X Platform", "DGX H100", "TPU v5p pod", "DGX-1 V100")]
    assert shown == ["64", "450", "100", "–"]
    assert column(nodes, "network, GB/s one direction")["GB200 NVL72"] == f"{72 * 50:,}"
    for name, row in data("prices").items():
        assert value(column(parts, "price, dollars")[name]) == row.get("price")


def test_models_count_their_parameters():
    table = catalogue("models")
    counts = column(table, "parameters, billion")
    for name, row in data("models").items():
        printed = row["parameters"]
        assert value(counts[name]) * 1e9 == pytest.approx(printed, rel=5e-4 if isinstance(printed, int) else 0.02), name


@pytest.mark.parametrize("name", ["accelerators", "links", "nodes", "parts"])
def test_every_row_leads_to_a_source_and_a_date(name):
    table = catalogue(name)
    html = table.notes._repr_html_()
    told = dict(re.findall(r'<dt id="([^"]+)">.*?</dt><dd>(.*?)</dd>', html))
    assert list(told) == table.data["anchors"]
    assert [key for key, text in told.items() if not re.search(r"\((19|20)\d\d-\d\d\)$", text)] == []
    assert [key for key, text in told.items() if not re.search(r'href="https://|arXiv:|doi:', text)] == []
    assert all(f'<a href="#{anchor}">' in table.fallback() for anchor in table.data["anchors"])


def test_an_unknown_table_names_the_others():
    with pytest.raises(LookupError, match="accelerators, links, nodes, parts, models"):
        catalogue("gpus")


# ---- the landing page ------------------------------------------------------------------------------------------------


def test_the_first_question_offers_the_answers_people_give():
    size, sold, ranks = 140e9, 900e9, 8
    right = 2 * (ranks - 1) * (size / ranks) / (sold / 2)
    values = [size / sold, size / (sold / 2), right, (ranks - 1) * size / sold]
    built = questions.build("index/ring-140")["choices"]
    assert [c["text"] for c in built] == ["156 ms", "311 ms", "544 ms", "1.09 s"]
    assert [c["right"] for c in built] == [False, False, True, False]
    shown = [float(c["text"].split()[0]) * (1e-3 if "ms" in c["text"] else 1) for c in built]
    assert shown == pytest.approx(values, rel=4e-3)
    assert values[3] / right == pytest.approx(2)
    assert 63 * size / sold / (2 * 63 / 64 * size / (sold / 2)) == pytest.approx(16)


def test_questions_recompute():
    assert questions.check("index") == []


CARDS = {  # what a card must say, worked out without the library
    "HBM bandwidth": ["3.35 TB/s", f"{16e9 / 3.35e12 * 1e3:.2f} ms", f"{989.4 / 3.35:.0f} for each byte"],
    "Interconnect bandwidth": ["450 GB/s", "900 GB/s", f"{450 / 50:.0f} times", f"{2 * 7 / 8 * 16 / 450 * 1e3:.1f} ms"],
    "Memory capacity": [f"{81559 / 1024:.2f} GiB", f"{81559 * 2**20 / 1e9:.2f} GB", f"{16 * 7} GB", f"{2 * 7} GB each"],
    "GPU-hours": ["30.84 million", f"{6 * 405e9 * 15.6e12 / 400e12 / 3600 / 1e6:.1f} million", "989.4 TFLOP/s dense"],
}


def test_cards_say_what_arithmetic_says():
    shown = {card["title"]: " ".join((card["value"], card["what"], *card["says"])) for card in cards().cards}
    assert list(shown) == list(CARDS)
    assert [(title, text) for title, texts in CARDS.items() for text in texts if text not in shown[title]] == []


def test_cards_open_to_derivation_source_and_question():
    html = cards()._repr_html_()
    for one in re.split('<details class="metric">', html)[1:]:
        assert "÷" in one or "×" in one
        assert re.search(r"<em>Source:</em>|<em>Source:</em>", one) and 'href="https://' in one
        assert one.count('class="clusterlab-widget"') == 1
        assert re.search(r'href="[^"]+\.ipynb', one.split("clusterlab-widget")[0]), "a way to the derivation"


@pytest.fixture
def small(tmp_path):
    """A book of three pages: one to study, one to look up, one not in the contents."""
    opening = ("# A lesson\n\nIt [waits](x.md). **How long is it?** No more.\n\n"
               "*Needs:* nothing. *Time:* 35 minutes, or 50. *Hardware:* any computer; a GPU helps.")
    cells = [(opening, "markdown"), ('quiz("a/one")\nhunch("a/no")\nquiz("a/two", 1)', "code"),
             ("## Later\n\n*Time:* 99 minutes", "markdown")]
    (tmp_path / "lessons").mkdir()
    for name in ("a", "hidden"):
        (tmp_path / "lessons" / f"{name}.ipynb").write_text(json.dumps(
            {"cells": [{"cell_type": kind, "source": text} for text, kind in cells]}), "utf-8")
    (tmp_path / "notes.md").write_text("# Notes\n\nNo time is stated.\n", "utf-8")
    (tmp_path / "_toc.yml").write_text(
        "root: book/index\nparts:\n- caption: Lessons\n  chapters:\n  - file: lessons/a\n"
        "- caption: Other\n  chapters:\n  - file: notes\n", "utf-8")
    return tmp_path


def test_a_page_says_its_question_minutes_and_hardware(small):
    [(caption, [page])] = contents.parts(small)
    assert (caption, page.title, page.minutes, page.hardware) == ("Lessons", "A lesson", 35, "any computer")
    assert page.question == "It waits. How long is it? No more."
    assert page.keys == ("a/one", "a/two")


def test_the_table_lists_what_is_in_the_contents(small):
    html = contents.table(small, "book/index")
    assert re.findall(r'href="([^"]+)"', html) == ["../lessons/a.html"]
    assert 'data-questions="a/one a/two"' in html and "In all 35 minutes." in html


def test_every_lesson_and_chapter_states_its_question_time_and_hardware():
    names = [name for _, names in contents.listed(ROOT) for name in names]
    for name in names:
        page = contents.study(ROOT, name)
        if name.startswith("lessons/"):
            assert page, f"{name}: its opening states no *Time:* in minutes"
        if page:
            assert page.question.count("?") >= 1, f"{name}: no question in bold type in its opening"
            assert 10 <= page.minutes <= 120 and page.hardware and page.keys, name


# ---- glossary, notation, bibliography --------------------------------------------------------------------------------


def terms():
    body = re.search(r"```\{glossary\}\n(.*?)\n```", (REFERENCE / "glossary.md").read_text("utf-8"), re.DOTALL)[1]
    return dict(re.fullmatch(r"(\S.*)\n  (\S.*)", entry).groups() for entry in body.split("\n\n"))


SPELLED = """all-reduce|reduce-scatter|all-gather|all-to-all|rank|world size|algbw|busbw|micro-batch|data parallel|
tensor parallel|pipeline parallel|context parallel|expert parallel|sequence parallel|MFU|HFU|goodput|MTBF|FSDP|ZeRO|
HSDP|NVLink|NVSwitch|InfiniBand|RoCE|RDMA|NCCL|torchrun|rail-optimized|dragonfly|torus|loss scaling|master weights|
bf16|straggler|checkpoint|elastic training|roofline|arithmetic intensity|HBM|scaling law|MLPerf|XLA|MPI|DeepSpeed|
Megatron-LM|Transformer Engine""".replace("\n", "")


def test_terms_are_spelled_as_the_field_does_and_in_order():
    known = list(terms())
    assert len(known) >= 80 and known == sorted(known, key=str.lower)
    assert [term for term in SPELLED.split("|") if term not in known] == []


def test_every_term_is_short_and_leads_somewhere():
    for term, text in terms().items():
        assert re.search(r"\]\(|\{py:\w+\}`|\{study\}`|\{cite\}`", text), term
        told = re.sub(r"\{[\w:]+\}`[^`]*`|\[[^\]]*\]\([^)]*\)", "", text)
        assert len(told.split()) <= 60, f"{term}: {len(told.split())} words"


def test_notation_has_every_sign_of_lesson_6():
    notation = (REFERENCE / "notation.md").read_text("utf-8")
    known = set(re.findall(SIGN, " ".join(re.findall(r"\$([^$]+)\$", notation))))
    cells = json.loads((ROOT / "lessons" / "06_allreduce.ipynb").read_text("utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    used = set()
    for display, inline in re.findall(r"\$\$(.*?)\$\$|\$([^$\n]+)\$", text, re.DOTALL):
        used |= set(re.findall(SIGN, re.sub(r"\\text\{[^}]*\}", "", display or inline)))
    assert len(used) > 10 and used - known == set()


SIGN = r"\\(?:alpha|beta|gamma|varepsilon|lambda|delta|tau|eta)\b|(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])"


def bibliography():
    text = (ROOT / "book" / "references.bib").read_text("utf-8")
    return re.findall(r"^@\w+\{([\w-]+),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)


IDENTIFIER = re.compile(
    r"doi\s*=\s*\{10\.\d{4,}/\S+\}|eprint\s*=\s*\{\d{4}\.\d{4,5}\}|url\s*=\s*\{https://[\w.-]+\.\w+/\S*\}")


def test_every_source_has_an_identifier():
    entries = bibliography()
    assert len({key for key, _ in entries}) == len(entries) >= 10
    assert [key for key, entry in entries if not IDENTIFIER.search(entry)] == []
    malformed = [url for _, entry in entries for url in re.findall(r"arxiv\.org/\S+?(?=\})", entry)
                 if not re.fullmatch(r"arxiv\.org/abs/\d{4}\.\d{4,5}", url)]
    assert malformed == []


@pytest.mark.parametrize("entry", ["title = {T}", "url = {http://x}", "doi = {doi.org/10.1/x}", "eprint = {2104}"])
def test_a_source_without_identifier_is_noticed(entry):
    assert not IDENTIFIER.search(entry)


# ---- in a browser ----------------------------------------------------------------------------------------------------


def ready(page):
    page.wait_for_function("document.querySelectorAll('.clusterlab-widget:not([data-ready])').length === 0")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 360])
def test_the_first_screen_asks(open_page, width):
    page = open_page("book/index", width=width)
    ready(page)
    button = page.locator("[data-key='index/ring-140'] [type=submit]")
    assert button.bounding_box()["y"] + button.bounding_box()["height"] < 900
    page.locator("[data-key='index/ring-140'] input").nth(3).check()
    button.press("Enter")
    said = page.locator("[data-key='index/ring-140'] .clw-say")
    assert said.inner_text().startswith("Not so.") and "eighths" in said.inner_text()
    said.get_by_role("link").first.click()
    assert page.url.endswith("lessons/06_allreduce.html#one-server-or-a-ring") and page.errors == []


@pytest.mark.browser
def test_the_table_tells_what_was_answered_elsewhere(open_page):
    page = open_page("lessons/06_allreduce")
    ready(page)
    page.locator("[data-key='06/before-direction'] input").nth(1).check()
    page.locator("[data-key='06/before-direction'] [type=submit]").click()
    page.goto(page.root + "/book/index.html")
    row = page.get_by_role("link", name="6 · All-reduce algorithms").last.locator("xpath=ancestor::tr")
    row.get_by_text(re.compile(r"^1 of \d+ right$")).wait_for()


@pytest.mark.browser
def test_a_card_opens_by_keyboard_and_asks(open_page):
    page = open_page("book/index")
    ready(page)
    card = page.locator("details.metric").first
    assert not card.locator("form").is_visible()
    card.locator("> summary").focus()
    page.keyboard.press("Enter")
    card.locator("input").fill("15 ms")
    card.locator("input").press("Enter")
    assert card.locator(".clw-say").inner_text().startswith("Right.")


@pytest.mark.browser
def test_the_catalogue_sorts_by_keyboard(open_page):
    page = open_page("book/reference/hardware")
    ready(page)
    table = page.locator("[data-key='catalogue/accelerators']")
    table.get_by_role("button", name="memory, GiB").focus()
    page.keyboard.press("Enter")
    head = table.get_by_role("columnheader", name="memory, GiB")
    shown = [float(text.replace(",", "")) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()]
    assert shown == sorted(shown, reverse=True) and head.get_attribute("aria-sort") == "descending"
    assert table.get_by_role("status").inner_text() == "Sorted by memory, GiB, largest first."
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    table.get_by_role("button", name="power, W").click()
    power = table.locator("tbody td:nth-child(9)").all_inner_texts()
    published = [float(text.replace(",", "")) for text in power if text != "–"]
    assert published == sorted(published, reverse=True) and set(power[len(published):]) == {"–"}
    table.get_by_role("button", name="part").click()
    names = table.locator("tbody th").all_inner_texts()
    assert names.index("A100 PCIe 40GB") < names.index("H100 NVL") < names.index("V100 PCIe 32GB")
    assert page.errors == []


@pytest.mark.browser
def test_the_catalogue_reads_without_script(open_page):
    page = open_page("book/reference/hardware", js=False)
    assert page.get_by_role("row").filter(has_text="H100 SXM").filter(has_text="989.4").first.is_visible()
    note = page.locator("#accelerators-mi300x")
    assert not note.is_visible()
    page.locator("details.catalogue summary").first.click()
    assert note.is_visible()
