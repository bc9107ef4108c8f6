"""Every number of the registry is what its proof says, and every page prints it so."""

import re

import prose
import pytest
from clusterlab import numbers
from clusterlab.expressions import names_in

PAGES = prose.pages()
IDS = sorted(numbers.registry())


@pytest.mark.parametrize("id", IDS)
def test_display_is_the_proof_rounded(id):
    numbers.check(id)


@pytest.mark.parametrize("id", IDS)
def test_proof_is_a_computation_or_a_source(id):
    entry = numbers.number(id)
    assert entry.expression or entry.source, "neither expression nor source"
    if entry.expression:
        assert set(names_in(entry.expression)) & {"collectives", "hardware", "measured"} or \
            re.search(r"\b[a-z_]+\.\w+\(", entry.expression), "a literal proves nothing: use the library"
    if entry.source:
        assert re.search(r"https?://|arXiv:|doi:|ISBN", entry.source), "a source needs an address or identifier"
    assert len(entry.says) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_show_what_the_registry_says(page):
    for display, id in page.linked:
        assert display == numbers.number(id).display, f"{page.name} prints {display!r} for {id}"


@pytest.mark.parametrize("page", [p for p in PAGES if p.path.suffix == ".ipynb"], ids=lambda page: page.name)
def test_closing_cell_lists_the_numbers_of_its_page(page):
    linked = {id for _, id in page.linked}
    shown = set(re.findall(r'"([a-z0-9-]+)"', page.code.rpartition("numbers.show(")[2])) if linked else set()
    assert shown == linked


def test_no_number_is_unused():
    used = {id for page in PAGES for _, id in page.linked}
    assert set(IDS) == used, f"unused: {sorted(set(IDS) - used)}, unknown: {sorted(used - set(IDS))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_derived_number_without_a_proof(page):
    missing = prose.unproved(page)
    assert not missing, "\n".join(f"{quantity}: …{text[:90]}…" for quantity, text in missing.items())


@pytest.mark.parametrize("display, value", [
    ("544 ms", 0.544), ("1,024", 1024), ("2 %", 0.02), ("1.75×", 1.75), ("16 GiB", 16 * 2**30), ("6·10⁻³ s", 0.006),
])
def test_displays_are_read(display, value):
    assert numbers.parse(display)[0] == pytest.approx(value)


@pytest.mark.parametrize("display", ["", "about 3", "3 GB 4", "12 parsecs/s"])
def test_displays_that_are_no_numbers_are_refused(display):
    with pytest.raises(ValueError, match="display"):
        numbers.parse(display)


def vague(entry):
    """What is wrong with a rate that says no direction or density, or decimal bytes computed from binary ones."""
    if re.search(r"\d [kMGTP]B/s", entry.display) and not re.search("direction|busbw|memory bandwidth", entry.says):
        return "a bandwidth says its direction"
    if "FLOP/s" in entry.display and not re.search("dense|achieved|measured", entry.says):
        return "a peak says that it is dense"
    if re.search(r"\d [kMGTP]B$", entry.display) and re.search(r"\b[KMGT]iB\b", entry.expression):
        return "decimal bytes were computed from binary ones"
    return ""


@pytest.mark.parametrize("id", IDS)
def test_rates_say_direction_and_density(id):
    assert not vague(numbers.number(id))


@pytest.mark.parametrize("says, display, expression", [
    ("NVLink 4 of an H100", "450 GB/s", "x"), ("peak of an H100", "989 TFLOP/s", "x"), ("an array", "17.2 GB", "16*GiB"),
])
def test_vague_rates_are_found(says, display, expression):
    assert vague(numbers.Number("x", says, display, expression))


def vague_headers(page):
    """Cells of table heads that name a rate without its direction, or a peak without density."""
    rows = [line for p in page.paragraphs for line, after in zip(p.split("\n"), p.split("\n")[1:])
            if line.startswith("|") and re.match(r"\|[ :|-]+\|$", after.strip())]
    cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")]
    return [cell for cell in cells if re.search("bandwidth|B/s", cell) and not re.search("direction|busbw|memory", cell)
            or "FLOP/s" in cell and not re.search("dense|achieved", cell)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_table_heads_say_direction_and_density(page):
    assert vague_headers(page) == []


def test_vague_table_heads_are_found(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("| part | bandwidth | peak, FLOP/s |\n|---|---|---|\n| H100 | 450 | 989 |", "utf-8")
    assert vague_headers(prose.read(path)) == ["bandwidth", "peak, FLOP/s"]


def test_unknown_number_names_near_ones():
    with pytest.raises(LookupError, match="ring-70b-8"):
        numbers.number("ring-70b8")


@pytest.mark.parametrize("text, found", [
    ("It takes 311 ms.", {"311 ms"}),
    ("*Given:* 5 ms.\n\nLater 5 ms again.", set()),
    ("[311 ms](#num-x), later 311 ms.", set()),
    ("`sleep 5 s` and $4\\ \\text{GB}$", set()),
])
def test_lint_finds_unproved_numbers(text, found, tmp_path):
    path = tmp_path / "page.md"
    path.write_text(text, "utf-8")
    assert set(prose.unproved(prose.read(path))) == found
