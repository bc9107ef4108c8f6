"""Notebooks as they are stored: run in order, canonical, honest about what is compared, results sealed.

Each check takes a notebook and returns what is wrong with it; each is shown to fail on a broken notebook below.
That the stored outputs are what the code gives is nbval's part (`make test`).
"""

import copy
import json
import re

import nbformat
import pytest
from conftest import ROOT
from execute import WIDGET, canonical
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

LESSONS = sorted(ROOT.glob("lessons/*.ipynb"))
NOTEBOOKS = LESSONS + sorted([*ROOT.glob("book/*.ipynb"), *ROOT.glob("book/*/*.ipynb")])
TAGS = {"hide-input", "hide-output", "hide-cell", "remove-input", "remove-cell", "nbval-ignore-output"}
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}  # the reader need not read this code
TRACE = re.compile(r"/(?:home|root|tmp|Users|work)/|\b0x[0-9a-f]{6,}")  # of the machine a notebook was run on


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell):
    return set(cell.metadata.get("tags", []))


def text_of(outputs):
    """All text that a reader of the outputs may see, HTML as it is stored."""
    found = []
    for output in outputs:
        data = output.get("data", {})
        found.append(output.get("text", "") + data.get("text/html", data.get("text/plain", "")))
        found.append(data.get("text/markdown", ""))
    return "\n".join(found)


def prose(cells):
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


# ---- checks ---------------------------------------------------------------------------------------------------------


def not_executed_in_order(notebook):
    found = []
    for number, cell in enumerate(code_cells(notebook), start=1):
        if cell.execution_count != number:
            found.append(f"code cell {number} has count {cell.execution_count}")
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"code cell {number} stores an error: {output.ename}")
            if output.get("name") == "stderr":
                found.append(f"code cell {number} stores stderr: {output.text[:80]!r}")
    return found


def not_canonical(notebook):
    return [] if canonical(notebook) == nbformat.writes(notebook).rstrip("\n") + "\n" else ["not canonical"]


def widget_models(notebook):
    found = ["metadata.widgets"] if "widgets" in notebook.metadata else []
    return found + [f"{WIDGET} in {cell.source[:40]!r}" for cell in code_cells(notebook)
                    for output in cell.outputs if WIDGET in output.get("data", {})]


def images_without_words(notebook):
    """An image's alternative text states its point: a sentence, not a name."""
    return [f"no alternative text for the image of {cell.source[-60:]!r}" for cell in code_cells(notebook)
            if any(kind.startswith("image/") for output in cell.outputs for kind in output.get("data", {}))
            and len(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "").split()) < 5]


def unknown_tags(notebook):
    found = [f"unknown tag {tag!r}" for cell in notebook.cells for tag in sorted(tags(cell) - TAGS)]
    return found + [f"a comment steers nbval: {cell.source[:40]!r}" for cell in code_cells(notebook)
                    if re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)", cell.source)]


def traces_of_a_machine(notebook):
    return [f"{found.group()!r} in {cell.source[:40]!r}" for cell in notebook.cells
            if (found := TRACE.search(cell.source + text_of(cell.get("outputs", []))))]


def measurements_without_check(notebook):
    """Outputs that no test compares: at most a quarter of the cells, each followed by one that is compared."""
    cells = code_cells(notebook)
    ignored = [index for index, cell in enumerate(cells) if "nbval-ignore-output" in tags(cell)]
    found = [f"{len(ignored)} of {len(cells)} cells are not compared"] if 4 * len(ignored) > len(cells) else []
    for index in ignored:
        after = cells[index + 1] if index + 1 < len(cells) else None
        if after is None or "nbval-ignore-output" in tags(after) or not (
                re.search(r"^\s*assert ", after.source, re.MULTILINE) or any("text" in out for out in after.outputs)):
            found.append(f"no compared cell follows {cells[index].source[:60]!r}")
    return found


def long_cells(notebook):
    return [f"{len(cell.source.splitlines())} lines to read: {cell.source[:60]!r}" for cell in code_cells(notebook)
            if not tags(cell) & FOLDED and len(cell.source.splitlines()) > 15]


def unsealed_forecasts(notebook):
    """Each forecast has a sealed cell in its section, and its answer (±5 %) is nowhere visible before that."""
    found = []
    for index, cell in enumerate(notebook.cells):
        for key in re.findall(r"\bforecast\(\s*[\"']([^\"']+)", cell.source if cell.cell_type == "code" else ""):
            data = widget_data(cell, key)
            seal = seal_after(notebook, index)
            if data is None:
                found.append(f"{key}: its output is not stored")
            elif seal is None:
                found.append(f"{key}: no sealed cell (hide-output, outputs_hidden) before the next section")
            else:
                found += [f"{key}: {text!r} stands before its seal" for before in notebook.cells[:seal]
                          for text in measures(visible(before), data["units"], data["value"])]
    return found


def widget_data(cell, key):
    scripts = re.findall(r'<script type="application/json">(.*?)</script>', text_of(cell.outputs), re.DOTALL)
    return next((data for data in map(json.loads, scripts) if data.get("key") == key), None)


def sealed(cell):
    return (cell.cell_type == "code" and "hide-output" in tags(cell)
            and cell.metadata.get("jupyter", {}).get("outputs_hidden") is True)


def seal_after(notebook, index):
    for number, cell in enumerate(notebook.cells[index + 1:], start=index + 1):
        if sealed(cell):
            return number
        if cell.cell_type == "markdown" and re.search(r"^##? ", cell.source, re.MULTILINE):
            return None
    return None


def visible(cell):
    """The text of a cell that nobody has to open."""
    if cell.cell_type == "markdown":
        return without_dropdowns(cell.source)
    shown = cell.source if not tags(cell) & FOLDED else ""
    if "hide-output" in tags(cell) or "hide-cell" in tags(cell) or "remove-cell" in tags(cell):
        return shown
    html = re.sub(r"<script\b.*?</script>", " ", text_of(cell.outputs), flags=re.DOTALL)
    return shown + "\n" + without_dropdowns(html)


def without_dropdowns(text):
    text = re.sub(r"<details\b.*?</details>", " ", text, flags=re.DOTALL)
    kept, fence = [], None
    lines = text.split("\n")
    for number, line in enumerate(lines):
        opening = re.match(r"\s*(`{3,}|:{3,})\{([\w-]+)\}", line)
        if fence is None and opening:
            options = "\n".join(lines[number + 1:number + 4])
            if opening[2] == "dropdown" or re.search(r"^\s*:class:.*\bdropdown\b", options, re.MULTILINE):
                fence = opening[1]
        if fence is None:
            kept.append(line)
        elif line.strip() == fence:
            fence = None
    return "\n".join(kept)


def measures(text, scale, answer):
    """The numbers in `text`, with any of the units in `scale` (name to SI value), within 5 % of the answer."""
    units = "|".join(sorted(map(re.escape, scale), key=len, reverse=True))
    pattern = rf"(?<![\w.,])(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)(?:\s|\*|~|\\[,;]|&nbsp;)*({units})(?![\w/])"
    return [match.group() for match in re.finditer(pattern, text)
            if abs(float(match[1].replace(",", "")) * scale[match[2]] - answer) <= 0.05 * abs(answer)]


EVERYWHERE = [not_executed_in_order, not_canonical, widget_models, images_without_words, unknown_tags,
              traces_of_a_machine, measurements_without_check, long_cells, unsealed_forecasts]


def core(notebook):
    """The cells before the heading "Further": what takes 60 to 75 minutes."""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown" and re.search(r"^#+ Further\b", cell.source, re.MULTILINE):
            return notebook.cells[:index]
    return notebook.cells


def words(text):
    kept, fences = [], []  # of each open fence, whether it holds code
    for line in text.split("\n"):
        fence = re.match(r"`{3,}(.*)", line)
        if fence and fences and not fence[1].strip():
            fences.pop()
        elif fence:
            fences.append(not fence[1].startswith("{"))
        elif not any(fences):
            kept.append(line)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$|\]\([^)]*\)|<[^>]+>", " ", "\n".join(kept), flags=re.DOTALL)
    return len(re.findall(r"[^\W\d_][\w’'-]*", text))


def too_much(notebook):
    """A lesson's core: 3,500 words, 8 figures; and 8 to 10 questions once its last part, where you stand, is there.

    Questions on earlier lessons ("06/before-…") come on top.
    """
    cells = core(notebook)
    figures = sum(kind.startswith("image/") for cell in cells for out in cell.get("outputs", [])
                  for kind in out.get("data", {}))
    figures += len(re.findall(r"!\[|\{(?:figure|image)\}", prose(cells)))
    questions = sum(len(re.findall(r"\bquiz\(\s*[\"']\d\d/(?!before)", cell.source)) for cell in code_cells(notebook))
    whole = re.search(r"^#+ Where you stand", prose(notebook.cells), re.MULTILINE)
    found = [f"{words(prose(cells))} words"] if words(prose(cells)) > 3500 else []
    found += [f"{figures} figures"] if figures > 8 else []
    return found + ([f"{questions} questions"] if questions > 10 or whole and questions < 8 else [])


def test_words_of_folded_text_count_and_code_does_not():
    text = "one two\n```{dropdown} title\nthree\n```\nfour\n```python\nx = 1\n```\n```{dropdown} title\n$a$ five\n```\nsix"
    assert words(text) == 6


# ---- on what is stored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", EVERYWHERE, ids=lambda check: check.__name__)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, check):
    text = path.read_text("utf-8")
    if check is not_canonical:  # the file's own bytes count
        assert text == canonical(nbformat.reads(text, as_version=4)), f"run: python tools/execute.py --fix {path}"
    assert check(nbformat.reads(text, as_version=4)) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_has_a_lessons_size(path):
    assert too_much(nbformat.read(path, as_version=4)) == []


# ---- on notebooks made for it: each check can fail ------------------------------------------------------------------


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def widget(key, html="", **data):
    data = json.dumps({"key": key, **data})
    return new_output("display_data", {"text/html": (
        f'<div class="clusterlab-widget" data-widget="forecast">\n<p>{html}</p>\n'
        f'<details><summary>The answer</summary>{data}</details>\n'
        f'<script type="application/json">{data}</script>\n</div>'), "text/plain": f"Forecast({key!r})"})


def code(source, *outputs, tags=(), count=None, **metadata):
    metadata = ({"tags": list(tags)} if tags else {}) | metadata
    return new_code_cell(source, outputs=list(outputs), execution_count=count, metadata=metadata)


def notebook_of(*cells):
    """A canonical notebook of these cells, counted as if run."""
    cells = [new_markdown_cell(cell) if isinstance(cell, str) else copy.deepcopy(cell) for cell in cells]
    for number, cell in enumerate(cells):
        cell.id = f"made-{number}"
    notebook = new_notebook(cells=cells)
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.execution_count = number if cell.execution_count is None else cell.execution_count
    return nbformat.reads(canonical(notebook), as_version=4)


TIMES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
FORECAST = code('forecast("06/t", answer=ring)', widget("06/t", value=0.00048, units=TIMES))
SEAL = code("print(measured)", stream("ring took 481 µs\n"), tags=["hide-output"])
PLOT = new_output("display_data", {"image/png": "aGk=", "text/plain": "<Figure>"})
ALT = {"mystnb": {"image": {"alt": "Ring wins above one mebibyte and loses below it."}}}
MEASURE = code("time_it()", stream("0.31 s\n"), tags=["nbval-ignore-output"])
BAND = code("assert 0.1 < t < 1\nprint('within the band')", stream("within the band\n"))
PLAIN = [code(f"print({n})", stream(f"{n}\n")) for n in range(3)]


def good():
    return notebook_of(
        "# Title\n\nA message of 16 MB takes a while; links have 20 ms of latency.", *PLAIN,
        code("plot()", PLOT, **ALT), "## Forecast", FORECAST,
        "```{dropdown} Worked\nIt takes 480 µs.\n```", SEAL, MEASURE, BAND, "It took 480 µs.")


@pytest.mark.parametrize("check", [*EVERYWHERE, too_much], ids=lambda check: check.__name__)
def test_a_good_notebook_passes(check):
    assert check(good()) == []


def changed(index, **fields):
    """The good notebook with one cell changed after it was made canonical."""
    notebook = good()
    notebook.cells[index].update(nbformat.from_dict(fields))
    return notebook


def with_metadata(**metadata):
    notebook = good()
    notebook.metadata.update(metadata)
    return notebook


NO_FIELD = notebook_of(FORECAST, SEAL)
NO_FIELD.cells[1].metadata.pop("jupyter")

BROKEN = {
    "a count that jumps": (not_executed_in_order, changed(1, execution_count=5)),
    "a cell never run": (not_executed_in_order, changed(2, execution_count=None)),
    "stderr": (not_executed_in_order, notebook_of(code("warn()", stream("FutureWarning\n", "stderr")))),
    "an error": (not_executed_in_order, notebook_of(code("1/0", new_output("error", ename="E", evalue="", traceback=[])))),
    "timing metadata": (not_canonical, changed(1, metadata={"execution": {"iopub.status.busy": "2026"}})),
    "another id": (not_canonical, changed(1, id="b7c2")),
    "another kernel": (not_canonical, with_metadata(kernelspec={"name": "mine", "display_name": "m"})),
    "a language version": (not_canonical, with_metadata(language_info={"name": "python", "version": "3.11.7"})),
    "stdout in pieces": (not_canonical, changed(1, outputs=[stream("0"), stream("\n")])),
    "a fold for the page alone": (not_canonical, changed(1, metadata={"tags": ["hide-output"]})),
    "widget state": (widget_models, with_metadata(widgets={})),
    "a widget's model": (widget_models, changed(1, outputs=[new_output("display_data", {WIDGET: {"model_id": "x"}})])),
    "no alternative text": (images_without_words, notebook_of(code("plot()", PLOT))),
    "a name for a text": (images_without_words, notebook_of(code("plot()", PLOT, mystnb={"image": {"alt": "A plot"}}))),
    "a misspelt tag": (unknown_tags, notebook_of(code("1", tags=["hide_output"]))),
    "a skipped cell": (unknown_tags, notebook_of(code("1", tags=["nbval-skip"]))),
    "a comment for nbval": (unknown_tags, notebook_of(code("# NBVAL_IGNORE_OUTPUT\nprint(time())"))),
    "a path": (traces_of_a_machine, notebook_of(code("print(p)", stream("/home/" "someone/x\n")))),
    "an address": (traces_of_a_machine, notebook_of(code("x", stream("<object at 0x7f3a5c21d0>\n")))),
    "many not compared": (measurements_without_check, notebook_of(PLAIN[0], MEASURE, BAND)),
    "last not compared": (measurements_without_check, notebook_of(*PLAIN, MEASURE)),
    "no check after": (measurements_without_check, notebook_of(*PLAIN, *PLAIN, MEASURE, code("x = 1"))),
    "two in a row": (measurements_without_check, notebook_of(*PLAIN, *PLAIN, MEASURE, MEASURE, BAND)),
    "a long cell": (long_cells, notebook_of(code("x = 1\n" * 16))),
    "no seal": (unsealed_forecasts, notebook_of(FORECAST, PLAIN[0])),
    "a seal in the next section": (unsealed_forecasts, notebook_of(FORECAST, "## Next", SEAL)),
    "a seal for the page alone": (unsealed_forecasts, NO_FIELD),
    "nothing stored": (unsealed_forecasts, notebook_of(code('forecast("06/t", answer=1)'), SEAL)),
    "the answer in prose": (unsealed_forecasts, notebook_of("It takes 490 µs.", FORECAST, SEAL)),
    "the answer in an output": (unsealed_forecasts, notebook_of(code("f()", stream("model 0.48 ms\n")), FORECAST, SEAL)),
    "the answer in code": (unsealed_forecasts, notebook_of(code("t = 0.000478 * s"), FORECAST, SEAL)),
    "the answer after a dropdown": (unsealed_forecasts, notebook_of(
        "```{dropdown} A\nx\n```\n0.5 ms", FORECAST, SEAL)),
    "the answer in the prompt": (unsealed_forecasts, notebook_of(
        code('forecast("06/t")', widget("06/t", "about 0.47 ms", value=0.00048, units=TIMES)), SEAL)),
    "long": (too_much, notebook_of("word " * 3501)),
    "many figures": (too_much, notebook_of(*[code("plot()", PLOT, **ALT)] * 9)),
    "many questions": (too_much, notebook_of(*[code('quiz("06/a")')] * 11)),
    "few questions": (too_much, notebook_of(code('quiz("06/a")'), "## Where you stand")),
}


@pytest.mark.parametrize("check, notebook", BROKEN.values(), ids=BROKEN)
def test_a_broken_notebook_is_found(check, notebook):
    assert check(notebook) != []


def test_what_is_further_is_not_counted():
    assert too_much(notebook_of("# Lesson", "## Further", "word " * 4000)) == []


def test_canonical_form_is_its_own_canonical_form():
    text = canonical(good())
    assert canonical(nbformat.reads(text, as_version=4)) == text


def test_equal_content_is_equal_bytes():
    notebook = good()
    for cell in notebook.cells:
        cell.id, cell.metadata = f"x{id(cell)}", nbformat.from_dict(dict(reversed(cell.metadata.items())))
        cell.metadata["scrolled"] = True
    assert canonical(notebook) == canonical(good())
