"""The planner in a browser: 200 random choices give what the library computes; its fields work by keyboard."""

import json
import random
import re
import subprocess
import sys
from importlib.resources import files

import pytest
from clusterlab.planning import BATCHES, job
from clusterlab.widgets.planner import planner

pytestmark = pytest.mark.browser
GRID = {"models": ["llama-3.1-8b", "llama-3.1-405b"], "nodes": ["DGX H100", "GB200 NVL72", "MI300X Platform"],
        "devices": [8, 512], "batches": list(BATCHES)}


@pytest.fixture(scope="module")
def shown(browser):
    """The widget alone in an empty page, its module imported as the book imports it."""
    html = planner("demo/planner", **GRID)._repr_mimebundle_()[0]["text/html"]
    data = json.loads(re.search(r'<script type="application/json">(.*)</script>', html, re.DOTALL)[1])
    page = browser.new_page()
    page.set_content('<main id="here"></main>')
    page.evaluate("""async ([source, data]) => {
        window.widget = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
        window.data = data;
        widget.default.render({ model: { get: () => data }, el: document.getElementById("here") });
    }""", [files("clusterlab.widgets").joinpath("planner.js").read_text("utf-8"), data])
    yield page
    page.close()


def test_two_hundred_random_runs_are_the_librarys(shown):
    draw = random.Random(7)
    asked, expected = [], []
    while len(asked) < 200:
        at = {"model": draw.randrange(2), "node": draw.randrange(3), "devices": draw.randrange(2), "batch": draw.randrange(2),
              "plan": draw.randrange(3), "tokens": 10 ** draw.uniform(8, 14), "price": draw.choice([0.0, draw.uniform(0.1, 9)])}
        names = GRID["models"][at["model"]], GRID["nodes"][at["node"]], GRID["devices"][at["devices"]], BATCHES[at["batch"]]
        asked.append(at)
        found = None if names[1].startswith("GB200") and names[2] == 8 else job(*names)
        if found is None or at["plan"] >= len(found.plans):
            expected.append(None)
            continue
        run = found.run(at["tokens"], at["price"], rank=at["plan"])
        rate = found.plans[at["plan"]].estimate.tokens_per_second
        expected.append(run._asdict() | {"rate": rate})
    got = shown.evaluate("(asked) => asked.map((at) => widget.calculate(at, data))", asked)
    assert 40 < sum(one is not None for one in expected) < 200
    for at, mine, theirs in zip(asked, expected, got, strict=True):
        assert (mine is None) == (theirs is None), at
        for name in mine or ():
            if mine[name] is None:
                assert theirs[name] is None
            else:
                assert theirs[name] == pytest.approx(mine[name], rel=1e-9), (at, name)


def test_its_fields_work_by_keyboard_and_nonsense_is_told(shown):
    shown.get_by_label("Machine", exact=True).select_option("0")
    shown.get_by_label("GPUs", exact=True).focus()
    shown.keyboard.press("End")
    shown.get_by_label("Model", exact=True).focus()
    shown.keyboard.press("End")
    said = shown.get_by_role("status").inner_text()
    found = job("llama-3.1-405b", "DGX H100", 512, BATCHES[0])
    assert f"{100 * found.plans[0].estimate.mfu:.0f} %" in said and "Memory binds: a plan with " in said
    assert f"but fill {found.wanted.estimate.memory.total / 2**30:.3g} GiB" in said and "data 4," not in said
    tokens = shown.get_by_label("Tokens in all, billions")
    for text, words in (("many", "“many” is no number above 0"), ("0", "above 0"), ("", "above 0")):
        tokens.fill(text)
        assert words in shown.get_by_role("status").inner_text()
        assert tokens.get_attribute("aria-invalid") == "true" and not shown.locator("table").first.is_visible()
    tokens.fill("1,000")
    assert "The run takes" in shown.get_by_role("status").inner_text()
    shown.get_by_label("Machine", exact=True).select_option("1")
    shown.get_by_label("GPUs", exact=True).select_option("0")
    assert "uses its 64 GPUs together" in shown.get_by_role("status").inner_text()


@pytest.mark.parametrize("billions, unit, size", [
    (0.5, "s", 1), (1, "min", 60), (20, "min", 60), (100, "h", 3600), (1000, "h", 3600), (1100, "days", 86400), (20_000, "days", 86400)])
def test_times_are_shown_in_their_unit(shown, billions, unit, size):
    for label, value in (("Model", "0"), ("Machine", "0"), ("GPUs", "1"), ("Tokens a step", "0")):
        shown.get_by_label(label, exact=True).select_option(value)
    shown.get_by_label("Tokens in all, billions").fill(str(billions))
    row = shown.get_by_role("row", name="the run takes").locator("td").first.inner_text()
    seconds = job("llama-3.1-8b", "DGX H100", 512, BATCHES[0]).run(billions * 1e9, 0).seconds
    number, shown_unit = row.replace(",", "").split()
    assert shown_unit == unit and float(number) == pytest.approx(seconds / size, rel=5e-3)
    shown.get_by_label("Tokens in all, billions").fill("1000")


def test_the_python_call_gives_what_is_shown(shown):
    shown.get_by_label("Model", exact=True).select_option("0")
    shown.get_by_label("Machine", exact=True).select_option("0")
    shown.get_by_label("GPUs", exact=True).select_option("1")
    source = shown.locator("pre").text_content()
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    at = {"model": 0, "node": 0, "devices": 1, "batch": 0, "tokens": 1e12, "price": 2.5}
    theirs = shown.evaluate("(at) => widget.calculate(at, data)", at)
    assert float(re.search(r"cost=([\d.e+]+)", said)[1]) == pytest.approx(theirs["cost"], rel=1e-9)
    assert re.search(r"data=(\d+)", said)[1] in shown.locator("table").first.inner_text()
