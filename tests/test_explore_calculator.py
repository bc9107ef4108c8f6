"""The calculator's page: its script says what the library says, on random inputs and through its controls."""

import dataclasses
import functools
import importlib.resources
import json
import math
import random
import re
import runpy
from urllib.parse import parse_qs

import pytest
from clusterlab import cost, fitting, hardware, kernels, memory
from clusterlab.collectives import ALGORITHMS, all_reduce_seconds
from clusterlab.compute import training_flops
from clusterlab.plan import Plan
from clusterlab.transformer import Transformer, model, models
from clusterlab.widgets.calculator import DTYPES, RECIPES, calculator

FOLDER = importlib.resources.files("clusterlab") / "widgets"
SOURCE = (FOLDER / "calculator.js").read_text("utf-8")
SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "tied", "experts",
         "experts_per_token")
PLAN = ("tensor", "pipeline", "data", "context", "expert", "micro_batch", "global_batch", "seq", "virtual",
        "sequence_parallel", "recompute", "zero_stage")
BYTES = ("weight", "gradient", "master", "moments")
COUNT = 200


@functools.cache
def widget():
    return calculator("calculator/plan")


def typed(texts):
    """Inputs as the script reads them from the form's texts."""
    fields = {field["key"]: field for group in widget().data["groups"] for field in group["fields"]}
    values = {}
    for key, text in texts.items():
        field = fields[key]
        if field["kind"] == "flag":
            values[key] = text == "on"
        elif field["kind"] == "choice":
            values[key] = int(text) if field.get("whole") else text
        else:
            values[key] = None if text == "" else float(text) if re.search(r"[.e]", text) else int(text)
    return values


def defaults(**changed):
    return typed(widget().data["defaults"]) | changed


def drawn(rng):
    """One set of inputs, legal or not: mostly powers of two, now and then what nobody should ask for."""
    def power(most):
        return 2 ** rng.randint(0, most)

    def sometimes(chance, one, other):
        return one if rng.random() < chance else other

    heads = rng.choice([8, 12, 16, 32, 40])
    own = {"layers": rng.choice([1, 12, 24, 32, 48, 80]), "heads": heads, "hidden": heads * rng.choice([64, 80, 128]),
           "kv_heads": rng.choice([None, None, 2, 4, 8]), "head_dim": rng.choice([None, None, 64, 256]),
           "ffn": rng.choice([None, 4096, 14336, 11008]), "vocab": rng.choice([1, 32000, 50257]),
           "gated": rng.random() < 0.5, "tied": rng.random() < 0.5, "experts": rng.choice([1, 1, 8, 16]),
           "experts_per_token": rng.choice([1, 1, 2])}
    data, micro = power(5), power(3)
    values = own | {
        "model": sometimes(0.4, "own", rng.choice(models())), "recipe": sometimes(0.2, "own", rng.choice(RECIPES)),
        **{name: rng.choice([0, 1, 2, 4, 6.5, 8]) for name in BYTES},
        "tensor": power(3), "pipeline": sometimes(0.5, 1, power(3)), "data": data, "context": sometimes(0.7, 1, power(2)),
        "expert": sometimes(0.6, 1, power(3)), "micro_batch": micro, "seq": 2 ** rng.randint(9, 14),
        "global_batch": sometimes(0.93, data * micro * power(5), rng.randint(1, 100)),
        "virtual": sometimes(0.75, 1, rng.randint(2, 4)), "sequence_parallel": rng.random() < 0.6,
        "recompute": rng.choice(["none", "selective", "full"]), "zero_stage": rng.randint(0, 3),
        "attention": rng.choice(["eager", "flash"]), "dropout": rng.random() < 0.5, "logit_bytes": rng.choice([4, 12]),
        "part": rng.choice(list(hardware.accelerators())), "dtype": rng.choice(DTYPES[:1] * 6 + DTYPES),
        "mfu": rng.choice([0.05, 0.31, 0.4, 1, 1.2]) if rng.random() < 0.4 else 0.45, "tokens": 10 ** rng.uniform(6, 14),
        "price_per_hour": sometimes(0.9, rng.uniform(0, 10), -1), "power": rng.choice([None, 350, 700, 1275.5]),
        "pue": sometimes(0.9, rng.uniform(1, 2), 0.9), "causal": rng.random() < 0.5,
        "flops": rng.choice(["counted", "six"]),
        "over": rng.choice(["own", *hardware.nodes(), *rng.sample(list(hardware.links()), 20)]),
        "algorithm": rng.choice(ALGORITHMS), "chunks": sometimes(0.9, rng.randint(1, 64), 0), "show": "GB"}
    if rng.random() < 0.15:
        name = rng.choice([*PLAN[:9], "layers", "heads", "experts", "weight", "tokens", "mfu"])
        values[name] = rng.choice([0, -1, 3, 7, 1.5])
    return values


def library(i):
    """What the library says to the same inputs, and in which words it refuses."""
    found, problems = {}, []

    def attempt(work):
        try:
            return work()
        except (ValueError, LookupError) as error:
            problems.append(str(error))

    recipe = attempt(lambda: memory.Recipe(*(i[name] for name in BYTES)) if i["recipe"] == "own" else getattr(memory, i["recipe"]))
    shape = attempt(lambda: Transformer(**{name: i[name] for name in SHAPE}) if i["model"] == "own" else model(i["model"]))

    def legal():
        made = Plan(**{name: i[name] for name in PLAN})
        if shape is not None:
            made.check(shape)
        return made

    plan = attempt(legal)
    if problems:
        return {"problems": problems}
    part, how = hardware.accelerator(i["part"]), {"recipe": recipe, **{k: i[k] for k in ("attention", "dropout", "logit_bytes")}}
    held = memory.device_memory(shape, plan, **how)
    fits = held.total <= part.memory
    tried = []
    for change in [] if fits else fitting.changes(shape, plan, **how):
        tried.append([change.kind, change.says, change.memory.total])
        if change.memory.total <= part.memory:
            break
    share = memory.model_state_bytes(shape.parameters(), recipe=recipe, tensor_parallel=plan.tensor,
                                     pipeline_parallel=plan.pipeline)
    ranks = plan.data * plan.context
    found = {"devices": plan.devices, "ranks": ranks, "parameters": shape.parameters(), "fits": fits, "tried": tried,
             "memory": dataclasses.asdict(held) | {"total": held.total}, "capacity": part.memory,
             "load_seconds": share.weights / part.memory_bandwidth, "gradient_bytes": share.gradients}
    smallest = None if fits else fitting.smallest_change(shape, plan, part, **how)
    assert (smallest.says if smallest else None) == (tried[-1][1] if tried and tried[-1][2] <= part.memory else None)

    def reduce():
        if i["over"] == "own":
            link = hardware.published(part, "scale_up")
        elif i["over"] in hardware.links():
            link = hardware.link(i["over"])
        else:
            link = kernels.group_link(hardware.Cluster(hardware.node(i["over"]), 1), plan.tensor, ranks)
        return all_reduce_seconds(share.gradients, ranks, link, algorithm=i["algorithm"], chunks=i["chunks"])

    def run():
        flops = training_flops(shape, batch=1, seq=plan.seq, causal=i["causal"]) / plan.seq
        factor = 6 if i["flops"] == "six" else flops / shape.active_parameters()
        busy = cost.device_seconds(shape.active_parameters(), i["tokens"], mfu=i["mfu"], peak_flops=part.dense_flops[i["dtype"]], factor=factor)
        power = cost.device_power(part) if i["power"] is None else i["power"]
        rate = i["tokens"] * plan.devices / busy
        return {"tokens_per_second": rate, "step_seconds": plan.global_batch * plan.seq / rate, "seconds": busy / plan.devices,
                "device_hours": busy / 3600, "energy": cost.run_energy(1, busy, power=power, pue=i["pue"]),
                "cost": cost.run_cost(1, busy, price_per_hour=i["price_per_hour"])}

    if (seconds := attempt(reduce)) is not None:
        found["all_reduce_seconds"] = seconds
    found |= attempt(run) or {}
    return found | {"problems": problems}


def flat(found, prefix=""):
    """{name: number or text} of a nested result."""
    items = found.items() if isinstance(found, dict) else enumerate(found)
    result = {}
    for name, value in items:
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, dict | list) else {f"{prefix}{name}": value}
    return result


def differences(ours, theirs):
    """Names under which the script's numbers are not the library's, to one part in 10⁹."""
    ours, theirs = flat(ours), flat(theirs)

    def same(one, other):
        return one == other or all(isinstance(x, int | float) for x in (one, other)) and abs(one - other) <= 1e-9 * abs(other)

    return [f"{name}: {ours.get(name)!r} in the page, {theirs.get(name)!r} in the library"
            for name in ours.keys() | theirs.keys() if not same(ours.get(name), theirs.get(name))]


@pytest.fixture(scope="module")
def computed(browser):
    """computed([inputs, …]) -> what the script makes of each, in a bare page."""
    page = browser.new_page()
    page.evaluate("async (text) => { window.script = await import(URL.createObjectURL(new Blob([text], { type: 'text/javascript' }))) }", SOURCE)
    data = widget().data

    def run(inputs):
        found = page.evaluate("([all, data]) => all.map((one) => window.script.calculate(one, data))", [inputs, data])
        for one in found:
            one.pop("change", None)
            if "tried" in one:
                one["tried"] = [[t["kind"], t["says"], t["total"]] for t in one["tried"]]
        return found

    yield run
    page.close()


@pytest.mark.browser
def test_random_inputs_give_the_library_s_numbers(computed):
    rng = random.Random(20)
    cases = [drawn(rng) for _ in range(COUNT)]
    theirs = [library(case) for case in cases]
    wrong = [(number, case["model"], found) for number, (case, ours, other) in enumerate(zip(cases, computed(cases), theirs, strict=True))
             if (found := differences(ours, other))]
    assert wrong == []
    legal = [found for found in theirs if "memory" in found]
    assert 0.3 * COUNT < len(legal) < 0.8 * COUNT, "a good part is legal, a good part is not"
    assert len({problem.partition(":")[0] for found in theirs for problem in found["problems"]}) > 12
    assert {kind for found in legal for kind, *_ in found["tried"]} == set(fitting.COSTS)
    assert sum(found["fits"] for found in legal) > 20 and sum(not found["fits"] for found in legal) > 20


@pytest.mark.browser
def test_every_named_model_part_link_and_algorithm_agrees(computed):
    fits = functools.partial(defaults, zero_stage=3, recompute="full")      # most do: few changes to work out
    cases = [fits(model=name) for name in models()] + [fits(part=name) for name in hardware.accelerators()]
    cases += [fits(over=name, tensor=2) for name in (*hardware.links(), *hardware.nodes())]
    cases += [fits(algorithm=name, data=n, micro_batch=1, global_batch=n, chunks=5) for name in ALGORITHMS for n in (1, 2, 3, 8, 12)]
    assert [found for case, ours in zip(cases, computed(cases), strict=True) if (found := differences(ours, library(case)))] == []


@pytest.mark.browser
def test_nothing_is_no_number(computed):
    rng = random.Random(5)
    bad = [0, -1, 1e-9, 1.5, 9e7]
    cases = [defaults(model=rng.choice(["own", "mixtral-8x7b"]), recipe="own", **{rng.choice([*PLAN[:9], *BYTES, "layers", "heads", "kv_heads", "ffn", "experts",
             "tokens", "mfu", "power", "pue", "chunks"]): rng.choice(bad) for _ in range(3)}) for _ in range(300)]
    for case, found in zip(cases, computed(cases), strict=True):
        numbers = [value for value in flat(found).values() if isinstance(value, float)]
        assert all(map(math.isfinite, numbers)), case


@pytest.mark.browser
def test_a_changed_formula_is_seen(browser):
    """The comparison can fail: one constant changed in the script."""
    page = browser.new_page()
    assert SOURCE.count("hidden * (8 + 2 * masks") == 1
    page.evaluate("async (text) => { window.script = await import(URL.createObjectURL(new Blob([text], { type: 'text/javascript' }))) }",
                  SOURCE.replace("hidden * (8 + 2 * masks", "hidden * (8.0001 + 2 * masks"))
    found = page.evaluate("([one, data]) => window.script.calculate(one, data)", [defaults(), widget().data])
    assert any(name.startswith("memory.activations") for name in differences(found | {"tried": []}, library(defaults())))
    page.close()


# --- the controls, in a page that holds nothing else --------------------------------------------------------------

@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """One page with the calculator, the widgets' own script and style; hides the fixture of the whole book."""
    out = tmp_path_factory.mktemp("calculator")
    modules = json.dumps({"calculator": SOURCE}).replace("<", r"\u003c")
    style = "".join(path.read_text("utf-8") for path in (FOLDER / "base.css", FOLDER / "calculator.css"))
    (out / "page.html").write_text(
        f'<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Calculator</title><style>body {{ margin: 8px; background: #fff }} "
        f'html[data-theme="dark"] body {{ background: #121212; --pst-color-text-base: #eee; --pst-color-text-muted: #bbb; color: #eee }} {style}</style></head>'
        f"<body><main><h1>Calculator</h1>{widget()._repr_mimebundle_()[0]['text/html']}</main>"
        f"<script>(() => {{ const modules = {modules};\n{(FOLDER / 'book.js').read_text('utf-8')} }})();</script></body></html>", "utf-8")
    return out


@pytest.fixture
def page(open_page):
    page = open_page("page")
    page.wait_for_selector("[data-ready]")
    yield page
    assert page.errors == [] and page.outside == []


def verdict(page):
    return page.locator(".clw-say").inner_text()


def rows(page):
    """{row's head: its cell's text} of all the tables."""
    return page.evaluate("Object.fromEntries([...document.querySelectorAll('tbody tr')].map((row) => [row.cells[0].textContent, row.cells[1].textContent]))")


def type_number(page, label, text):
    page.get_by_label(label, exact=True).focus()
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


@pytest.mark.browser
def test_keyboard_alone_finds_the_smallest_change_and_makes_it(page):
    assert verdict(page).startswith("Does not fit: 136 GB")
    page.get_by_label("ZeRO stage").focus()
    page.keyboard.type("3")
    assert "92 GB" in verdict(page) and "recompute none → full, then 34.4 GB" in verdict(page)
    assert rows(page)["sum, stage 0"] == "92 GB"
    page.get_by_role("button", name="Make this change").focus()
    page.keyboard.press("Enter")
    assert verdict(page).startswith("Fits. 34.4 GB of the 42.9 GB")
    assert page.get_by_label("recompute", exact=True).input_value() == "full"
    assert page.get_by_role("button", name="Make this change").get_attribute("aria-disabled") == "true"


@pytest.mark.browser
def test_numbers_typed_are_the_library_s(page):
    for label, text in (("data parallel", "16"), ("tokens a sequence", "8,192"), ("micro-batch, sequences", "1")):
        type_number(page, label, text)
    page.get_by_text("More parallelism and conventions").first.focus()
    page.keyboard.press("Enter")
    page.get_by_label("show sizes in").select_option("GiB")
    ours = library(defaults(data=16, seq=8192, micro_batch=1))
    assert rows(page)["sum, stage 0"] == f"{ours['memory']['total'] / 2**30:.3g} GiB"
    assert rows(page)["device-hours"] == f"{ours['device_hours']:,.0f}"


@pytest.mark.browser
def test_a_mistake_is_said_beside_its_input(page):
    type_number(page, "data parallel", "3")
    field = page.get_by_label("data parallel", exact=True)
    said = "global_batch not divisible by data × micro_batch: data=3, micro_batch=2, global_batch=16"
    batch = page.get_by_label("global batch, sequences", exact=True)
    assert batch.get_attribute("aria-invalid") == "true" and field.get_attribute("aria-invalid") == "false"
    assert page.locator(f"#{batch.get_attribute('aria-describedby')}").inner_text() == said
    assert verdict(page) == f"Not computed. {said}."
    type_number(page, "data parallel", "many")
    assert "data: a number is needed, not “many”" in verdict(page)
    type_number(page, "data parallel", "8")
    assert verdict(page).startswith("Does not fit")


@pytest.mark.browser
def test_a_link_keeps_the_inputs(page):
    type_number(page, "data parallel", "16")
    page.get_by_label("part", exact=True).select_option("H200 SXM")
    page.get_by_role("button", name="Link to this").click()
    url = page.locator("textarea").input_value()
    assert parse_qs(url.partition("#calculator/plan?")[2]) == {"data": ["16"], "part": ["H200 SXM"]} and len(url.partition("#")[2]) < 60
    said = verdict(page)
    page.evaluate("localStorage.clear()")
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector("[data-ready]")
    assert verdict(page) == said and page.get_by_label("data parallel", exact=True).input_value() == "16"


@pytest.mark.browser
@pytest.mark.parametrize("nonsense", ["part=Abacus&zero_stage=9", "data=%E0%A4%A", "constructor=1&__proto__=2&seq=", "&&&=&data=1e999", "tensor=<img src=x onerror=alert(1)>"])
def test_a_link_of_nonsense_breaks_nothing(page, nonsense):
    page.evaluate("(hash) => { location.hash = hash }", f"calculator/plan?{nonsense}")
    page.wait_for_timeout(50)
    assert re.match("Fits|Does not fit|Not computed", verdict(page)) and "NaN" not in page.inner_text("main")


@pytest.mark.browser
def test_what_was_typed_is_there_after_a_reload(page):
    type_number(page, "data parallel", "16")
    page.reload()
    page.wait_for_selector("[data-ready]")
    assert page.get_by_label("data parallel", exact=True).input_value() == "16"
    page.get_by_role("button", name="Start again").click()
    assert page.get_by_label("data parallel", exact=True).input_value() == "8"


CASES = [{}, {"zero_stage": "3", "recompute": "full"}, {"model": "own", "recipe": "own", "gradient": "4", "over": "DGX H100", "tensor": "2", "data": "4"},
         {"model": "mixtral-8x7b", "part": "TPU v5p", "power": "450", "flops": "six", "over": "InfiniBand NDR", "algorithm": "double-tree", "chunks": "9"}]


@pytest.mark.browser
@pytest.mark.parametrize("changed", CASES, ids=str)
def test_the_python_call_gives_the_page_s_numbers(page, computed, changed, tmp_path):
    page.evaluate("(text) => { location.hash = text }", "calculator/plan?" + "&".join(f"{k}={v}" for k, v in changed.items()))
    page.get_by_role("button", name="Python").click()
    (tmp_path / "call.py").write_text(page.locator("textarea").input_value(), "utf-8")
    names = runpy.run_path(tmp_path / "call.py")
    [there] = computed([defaults(**typed(changed))])
    assert there["memory"]["total"] == pytest.approx(names["held"].total, rel=1e-9)
    assert [there[name] for name in ("load_seconds", "all_reduce_seconds", "device_hours", "energy", "cost")] == pytest.approx(
        [names["load"], names["reduce"], names["busy"] / 3600, names["energy"], names["dollars"]], rel=1e-9)
    # a plan that fits needs no change, but the call tells the first anyway
    assert there["fits"] or (there["tried"][-1][1] == names["change"].says if names["change"] else there["tried"][-1][2] > there["capacity"])
    assert rows(page)["sum, stage 0"] == f"{names['held'].total / 1e9:.3g} GB"


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_accessible(page, axe, dark):
    if dark:
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    type_number(page, "data parallel", "3")
    assert axe(page) == []
    type_number(page, "data parallel", "8")
    page.get_by_role("button", name="Python").click()
    assert axe(page) == []


@pytest.mark.browser
def test_it_fits_a_narrow_screen_and_answers_at_once(open_page):
    page = open_page("page", width=360)
    page.wait_for_selector("[data-ready]")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    spent = page.evaluate("""() => { const input = document.querySelector('select'); const start = performance.now();
        for (const { value } of input.options) { input.value = value; input.dispatchEvent(new Event('input')); }
        return (performance.now() - start) / input.options.length }""")
    assert spent < 100, f"{spent:.0f} ms for one change"


@pytest.mark.browser
def test_a_live_notebook_shows_the_same_and_keeps_the_state(browser):
    page = browser.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.evaluate("""async ([text, data]) => {
        const script = await import(URL.createObjectURL(new Blob([text], { type: 'text/javascript' })));
        const values = { data, state: { inputs: { zero_stage: "3", gone: "1", data: 7, part: "Abacus" } } };
        window.model = { get: (name) => values[name], set: (name, value) => { values[name] = value }, save_changes() { this.saved = true } };
        script.default.render({ model: window.model, el: document.body });
    }""", [SOURCE, widget().data])
    assert "recompute none → full, then 34.4 GB" in verdict(page)
    assert page.get_by_role("button").all_inner_texts() == ["Make this change", "Python", "Start again"]
    type_number(page, "data parallel", "16")
    type_number(page, "global batch, sequences", "32")
    assert page.evaluate("[window.model.get('state'), window.model.saved]") == [
        {"inputs": {"zero_stage": "3", "data": "16", "global_batch": "32"}}, True]
    assert errors == []
    page.close()


def test_the_page_reads_without_script():
    html = widget()._repr_mimebundle_()[0]["text/html"]
    table = re.sub(r"<[^>]+>", " ", html.partition("<script")[0])
    assert "A100 SXM 40GB, tensor 1, data 8, ZeRO-3, recompute none" in table and "smallest change: recompute none → full" in table
    assert "id=" not in html.partition("<script")[0] and "style=" not in html.partition("<script")[0]


def test_a_form_offers_what_the_library_has():
    data = widget().data
    fields = [field for group in data["groups"] for field in group["fields"]]
    assert [field["key"] for field in fields] == list(dict.fromkeys(field["key"] for field in fields))
    assert {field["key"] for field in fields} == set(data["defaults"]) >= set(SHAPE) | set(PLAN) | set(BYTES)
    chosen = {field["key"]: [value for value, _ in field["options"]] for field in fields if field["kind"] == "choice"}
    assert all(data["defaults"][key] in values for key, values in chosen.items())
    assert chosen["model"] == [*models(), "own"] and chosen["algorithm"] == list(ALGORITHMS)
    assert set(data["links"]) == set(hardware.links()) and not set(data["links"]) & set(data["nodes"])
