"""The architecture explorer: its two formulas in a browser are the library's, and it reads without script."""

import json
import random
import re

import pytest
from clusterlab import levels
from clusterlab.units import format_seconds
from clusterlab.widgets.architecture import UNITS, architecture
from conftest import ROOT

FOLDER = ROOT / "lib" / "clusterlab" / "widgets"
RECORD = json.loads((ROOT / "lessons/measurements/amd-epyc-2-cores.json").read_text("utf-8"))
MACHINES = [*levels.ladders().values(), levels.of_record(RECORD)]
CALLS = """async ([source, data, calls]) => {
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  return calls.map(([machine, slot, path, size, whole, requests]) => {
    const one = data.machines[machine];
    return [one.tiers[slot] ? module.seconds(one.tiers[slot], size) : null,
      module.carry(one, data.paths[path][1], size, whole, requests, data.caches)];
  });
}"""


@pytest.fixture(scope="module")
def widget():
    return architecture("demo/architecture", records=[RECORD])


def inputs(count, seed=12):
    """Random machines, levels and paths; sizes from a byte to a petabyte, and none at all."""
    draw = random.Random(seed)
    return [[draw.randrange(len(MACHINES)), draw.choice(list(levels.SLOTS)), draw.randrange(len(levels.PATHS)),
             10 ** draw.uniform(0, 15) if draw.random() < 0.98 else 0.0, draw.random() < 0.5, 10 ** draw.uniform(0, 4)]
            for _ in range(count)]


def expected(machine, slot, path, size, whole, requests):
    one, name = MACHINES[machine], list(levels.PATHS)[path]
    alone = one.tiers[slot].seconds(size) if slot in one.tiers else None
    try:
        found = levels.carry(one, name, size, streamed=not whole, requests=requests)
    except LookupError:
        return alone, None
    goal = levels.PATHS[name][-1]
    return alone, (found.seconds, found.binds, found.by, list(found.unknown), one.needed(goal, size) or 1)


@pytest.mark.browser
def test_200_random_inputs_agree_with_the_library(browser, widget):
    calls = inputs(200)
    page = browser.new_page()
    got = page.evaluate(CALLS, [(FOLDER / "architecture.js").read_text("utf-8"), widget.data, calls])
    page.close()
    seen = set()
    for call, (alone, path) in zip(calls, got, strict=True):
        here, way = expected(*call)
        assert alone == (None if here is None else pytest.approx(here, rel=1e-9)), call
        if way is None:
            assert path is None, call
            continue
        seconds, binds, by, unknown, fills = way
        assert path["seconds"] == pytest.approx(seconds, rel=1e-9), call
        assert (path["binds"], path["by"], path["unknown"], max(1, path["fills"])) == (binds, by, unknown, fills), call
        seen.add((binds, by))
    assert len(seen) > 8, f"too few cases: {seen}"


def test_its_data_are_the_librarys(widget):
    data = json.loads(re.search(r'<script type="application/json">(.*)</script>', widget._repr_mimebundle_()[0]["text/html"], re.DOTALL)[1])
    assert [machine["name"] for machine in data["machines"]] == [one.name for one in MACHINES]
    for machine, one in zip(data["machines"], MACHINES, strict=True):
        assert {slot: (tier["bandwidth"], tier["latency"], tier["capacity"], tier["pair"]) for slot, tier in machine["tiers"].items()} == {
            slot: (tier.bandwidth, tier.latency, tier.capacity, tier.pair) for slot, tier in one.tiers.items()}
    assert {name: tuple(slots) for name, slots in data["paths"]} == levels.PATHS
    assert data["slots"] == [[name, slot] for slot, name in levels.SLOTS.items()]
    for _, number, unit in data["presets"]:
        assert number > 0 and 0 <= unit < len(UNITS)
    weights = {label: number * UNITS[unit][1] for label, number, unit in data["presets"]}
    assert weights["a tile of 128 × 64 in bf16"] == 128 * 64 * 2 and weights["Llama 3.1 405B in bf16"] == pytest.approx(811.7e9, rel=1e-3)


def test_the_stored_record_has_four_levels():
    found = MACHINES[-1]
    assert list(found.tiers) == ["near", "l2", "l3", "memory"]
    rates = [one.bandwidth for one in found.tiers.values()]
    assert rates == sorted(rates, reverse=True) and 5e9 < rates[-1] < rates[0] < 1e12


def test_it_reads_without_script(widget):
    html = widget.fallback()
    assert html.count("<table>") == html.count("</table>") == html.count("<details") == html.count("</details>") == len(MACHINES)
    for one in MACHINES:
        table = re.search(rf"<summary>{re.escape(one.name)}: .*?</details>", html, re.DOTALL)[0]
        assert table.count("<tr>") == len(one.tiers) + 1
        for tier in one.tiers.values():
            if tier.bandwidth:
                assert f"<td>{format_seconds(tier.seconds(1e9))}</td>" in table
    assert html.count("<td>not published</td>") > 10 and html.count("<td>not measured</td>") == 4
    assert '<a href="https://arxiv.org/abs/2505.09343">DeepSeek-V3 insights, table 5</a>, 2025-06.' in html


def test_the_module_is_small():
    assert (FOLDER / "architecture.js").stat().st_size <= 8192


def test_a_machine_that_is_not_there_is_named():
    with pytest.raises(LookupError, match="no machine 'DGX'"):
        architecture("demo/architecture", first=["DGX"])


# ---- in the book -----------------------------------------------------------------------------------------------------


@pytest.fixture
def explorer(open_page):
    """The page's explorer once it is ready; after the test, no error and no request outside."""
    page = open_page("book/explore/architecture")
    box = page.locator('.clusterlab-widget[data-key="architecture/explorer"]')
    box.locator(".clw-architecture").wait_for()
    yield box
    assert page.errors == page.outside == []


def cells(box):
    """The table as shown: level → times, one a machine."""
    rows = box.locator("tbody tr").evaluate_all("all => all.map((row) => [...row.cells].map((cell) => cell.textContent))")
    return {name: times for name, *times in rows}


def paths(box):
    """The sentences on what binds, one a machine."""
    return box.get_by_role("status").nth(1).locator("p")


@pytest.mark.browser
@pytest.mark.parametrize("text, unit, size", [("16", "KiB", 16384), ("70.554", "billion parameters × 2 B", 141.108e9), ("1,000", "MB", 1e9)])
def test_what_is_entered_is_computed(explorer, text, unit, size):
    explorer.get_by_label("Machine 2").select_option("DGX A100")
    explorer.get_by_label("Machine 3").select_option("AMD EPYC, 2 cores")
    explorer.get_by_label("Unit").select_option(unit)
    explorer.get_by_label("Size").fill(text)
    shown = cells(explorer)
    chosen = [levels.ladder("DGX H200"), levels.ladder("DGX A100"), MACHINES[-1]]
    for slot, name in levels.SLOTS.items():
        assert shown[name] == [format_seconds(one.tiers[slot].seconds(size)) if slot in one.tiers else "–" for one in chosen]
    path = "memory to shared memory, L1"
    explorer.get_by_label("Path").select_option(path)
    for item, one in zip(paths(explorer).all_text_contents(), chosen, strict=True):
        found = levels.carry(one, path, size)
        assert item.startswith(f"{one.name}: {format_seconds(found.seconds)}; binding: {one.tiers[found.binds].name}, ")


@pytest.mark.browser
def test_stepping_by_button_and_by_key(explorer):
    status = explorer.get_by_role("status").first
    assert status.text_content().startswith("Level 5 of 10: memory. 1 GB: DGX H200 209 µs, MI300X Platform 189 µs.")
    explorer.get_by_role("button", name="Farther").click()
    assert status.text_content().startswith("Level 6 of 10: scale-up link.")
    explorer.locator(".clw-scroll").focus()
    for key, level in (("ArrowRight", 7), ("ArrowLeft", 6), ("End", 10), ("ArrowRight", 10), ("Home", 1), ("ArrowLeft", 1)):
        explorer.page.keyboard.press(key)
        assert status.text_content().startswith(f"Level {level} of 10")
        assert explorer.locator("tr[aria-current] th").text_content() == list(levels.SLOTS.values())[level - 1]
    explorer.get_by_label("Size").press("ArrowRight")
    assert status.text_content().startswith("Level 1 of 10"), "in a field the arrows are the field's"


@pytest.mark.browser
def test_a_cell_may_be_empty_and_a_rate_unknown(explorer):
    explorer.get_by_label("Machine 1").select_option("DGX B200")
    assert "latencynot published" in explorer.locator(".clw-cards > div").first.text_content()
    explorer.get_by_label("Path").select_option("local drive to memory")
    first = paths(explorer).first.text_content()
    assert first == "DGX B200: at least 15.9 ms; binding: host memory over PCIe 5.0 x16, 63 GB/s. Rate of NVMe drive: not published."
    explorer.get_by_label("Machine 1").select_option("AMD EPYC, 2 cores")
    assert paths(explorer).first.text_content() == "AMD EPYC, 2 cores: no such path, or not measured"


@pytest.mark.browser
@pytest.mark.parametrize("label, text, says", [("Size", "ten", "“ten” is no number from 0."), ("Size", "-1", "“-1” is no number from 0."),
                                               ("Requests at once", "0", "“0” is no number from 1."), ("Size", "", "“” is no number from 0."),
                                               ("Size", "1e30", "“1e30” is too large."), ("Requests at once", "1e9", "“1e9” is too large."),
                                               ("Requests at once", "0.5", "“0.5” is no number from 1.")])
def test_what_is_no_number_is_said(explorer, label, text, says):
    explorer.get_by_label(label).fill(text)
    assert explorer.get_by_role("status").first.text_content() == says
    assert explorer.get_by_label(label).get_attribute("aria-invalid") == "true"
    assert explorer.locator("td").count() == paths(explorer).count() == 0, "no result of the choice before"
    explorer.get_by_label(label).fill("2")
    assert explorer.locator("td").count() == 20 and paths(explorer).count() == 2
    assert explorer.get_by_label(label).get_attribute("aria-invalid") == "false"


@pytest.mark.browser
def test_the_tasks_answers_are_found_with_it(explorer):
    item = paths(explorer).first
    explorer.get_by_label("Tensor", exact=True).select_option("Llama 3.1 405B in bf16")
    explorer.get_by_label("Requests at once").fill("555")
    assert "binding: object store, 50" in item.text_content() and "It fills 6 × HBM3e." in item.text_content()
    explorer.get_by_label("Requests at once").fill("556")
    assert "binding: InfiniBand NDR, 50 GB/s." in item.text_content()
    explorer.get_by_label("Path").select_option("memory to another server's memory")
    explorer.get_by_label("Unit").select_option("kB")
    for size, says in (("139", "binding: InfiniBand NDR, 2.8 µs of latency."), ("140", "binding: InfiniBand NDR, 50 GB/s.")):
        explorer.get_by_label("Size").fill(size)
        assert says in item.text_content()


@pytest.mark.browser
def test_the_address_keeps_what_was_chosen(explorer, open_page):
    explorer.get_by_label("Machine 3").select_option("TPU v5p pod")
    explorer.get_by_label("Size").fill("2.5")
    explorer.get_by_label("Path").select_option("host memory to memory")
    explorer.get_by_role("button", name="Farther").click()
    said = paths(explorer).all_text_contents()
    explorer.page.reload()
    paths(explorer).first.wait_for()
    assert paths(explorer).all_text_contents() == said
    assert explorer.get_by_role("status").first.text_content().startswith("Level 6 of 10: scale-up link. 2.5 GB:")


@pytest.mark.browser
@pytest.mark.parametrize("address", ["#levels:", "#levels:1,2", "#levels:0,99,7,-5,77,42,3,9,88", "#levels:a,b,c,d,e,f,g,h,i"])
def test_a_broken_address_shows_the_explorer_all_the_same(explorer, address):
    page = explorer.page
    page.goto(f"{page.url.partition('#')[0]}{address}")
    page.reload()
    explorer.locator(".clw-architecture").wait_for()
    explorer.get_by_label("Size").fill("1")
    assert explorer.get_by_role("status").first.text_content().startswith("Level ")
