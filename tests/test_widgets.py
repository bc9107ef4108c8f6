"""Widgets without a browser: keys recompute, the stored HTML stands alone, and what is wrong is refused by name."""

import copy
import gzip
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from clusterlab.schedules import schedule
from clusterlab.widgets import base, catalogue, measures, questions
from clusterlab.widgets.architecture import architecture
from clusterlab.widgets.base import rich
from clusterlab.widgets.calculator import calculator
from clusterlab.widgets.forecast import forecast
from clusterlab.widgets.planner import planner
from clusterlab.widgets.quiz import hunch, quiz, verdict
from clusterlab.widgets.slowest import explorer
from clusterlab.widgets.standing import standing
from clusterlab.widgets.stepper import stepper
from clusterlab.widgets.timeline import timeline
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parent / "fixtures" / "questions"
DEMO = tomllib.loads((FIXTURES / "demo.toml").read_text("utf-8"))


@pytest.fixture(autouse=True)
def demo(monkeypatch):
    monkeypatch.setattr(questions, "FOLDER", FIXTURES)


def all_widgets():
    return [hunch("demo/faster"), quiz("demo/before"), quiz("demo/steps"), quiz("demo/grows"), quiz("demo/bytes"),
            quiz("demo/order"), verdict("demo/claim"), forecast("demo/time", answer=0.48), standing("demo"),
            stepper("demo/ring", "Ring", 4, schedule("ring", 4)), catalogue("parts"), explorer("demo/cables"),
            architecture("demo/architecture", records=()), calculator("demo/calculator"), timeline("demo/step"),
            planner("demo/planner", models=["llama-3.1-8b"], nodes=["DGX H100"], devices=[8, 64], batches=[2**22])]


def html(widget):
    return widget._repr_mimebundle_()[0]["text/html"]


class Reader(HTMLParser):
    """What a reader sees without script: `seen` at once, `folded` inside <details>; and the JSON beside it."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.folded, self.scripts, self.tags = [], "", "", [], set()
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "script" in self.open:
            self.scripts.append(data)
        elif "details" in self.open and "summary" not in self.open:
            self.folded += data
        else:
            self.seen += data


def toml(value):
    """A value as TOML, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def write(folder, **tables):
    (folder / "x.toml").write_text("".join(f"{name} = {toml(table)}\n" for name, table in tables.items()), "utf-8")


# --- keys, against numbers worked out by hand --------------------------------------------------------------------

def test_keys_are_the_textbook_s():
    [right] = [c["text"] for c in quiz("demo/steps").data["choices"] if c["right"]]
    assert right == "14"  # 2 (8 - 1)
    sets = quiz("demo/bytes").data["sets"]
    assert [(one["value"], one["answer"]) for one in sets] == [
        (245e9, "245 GB"), (36e9, "36 GB"), (30e9, "30 GB")]  # 2 (n - 1)/n of 140, 24, 16 GB
    assert [m["value"] for m in sets[0]["mistakes"] if m["own"]] == [122.5e9, 1960e9]
    assert sets[1]["prompt"].startswith("4 ranks all-reduce 24 GB")
    assert "245 GB" in sets[0]["why"]
    assert questions.check("demo") == []


def test_a_forecast_knows_its_answer_and_the_usual_slips():
    data = forecast("demo/time", answer=0.48).data
    assert (data["value"], data["answer"], data["reveal"]) == (0.48, "480 ms", "The model says 480 ms.")
    assert {m["value"] for m in data["mistakes"]} > {0.32, 1.92, 480.0}
    assert forecast("demo/time", answer=0.4800000001).data == data  # the last digits of another machine


def test_slips_follow_the_unit():
    assert any(factor == 8 for factor, _ in measures.slips("GB/s"))
    assert {round(factor, 4) for factor, why in measures.slips("GB") if "binary" in why} == {1.0737, 0.9313}
    assert not any("bit" in why for _, why in measures.slips("ms"))
    assert measures.slips("steps") == measures.slips("×") == measures.slips("%") == []


@pytest.mark.parametrize(("unit", "other", "ratio"), [
    ("ms", "min", 60e3), ("GB", "GiB", 2**30 / 1e9), ("GB/s", "Gbit/s", 1 / 8), ("MB", "TB", 1e6),
    ("TFLOP/s", "PFLOP/s", 1e3), ("kWh", "GJ", 1e9 / 3.6e6), ("%", "×", 100), ("W", "MW", 1e6),
])
def test_units_convert(unit, other, ratio):
    table = measures.accepted(unit)
    assert table[other] / table[unit] == pytest.approx(ratio, rel=1e-12)


def test_a_misspelt_unit_is_no_count():
    for unit in ("gb", "GB/sec", "Ms"):
        with pytest.raises(ValueError, match="near names"):
            measures.accepted(unit)


def test_an_order_is_never_shown_in_order():
    data = quiz("demo/order").data
    assert sorted(data["shown"]) == [0, 1, 2] != data["shown"]


# --- what is stored ----------------------------------------------------------------------------------------------

def test_the_stored_output_is_the_same_in_every_process():
    script = (f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_widgets as t; "
              "t.questions.FOLDER = t.FIXTURES; print([(repr(w), t.html(w)) for w in t.all_widgets()])")
    here = str([(repr(w), html(w)) for w in all_widgets()])
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True,
                           env=os.environ | {"PYTHONHASHSEED": "7"})
    assert there.stdout.strip() == here
    assert repr(quiz("demo/steps")) == "Choice('demo/steps')"


@pytest.mark.parametrize("index", range(10))
def test_the_fallback_stands_alone(index):
    widget = all_widgets()[index]
    text = html(widget)
    read = Reader(text)
    assert read.tags <= {"div", "p", "strong", "em", "code", "a", "ul", "ol", "li", "details", "summary", "script",
                         "table", "thead", "tbody", "tr", "th", "td"}
    assert json.loads(read.scripts[0]) == widget.data
    assert len(read.scripts) == 1
    assert not re.search(r"\$|\\\(|\\\[", text), "TeX does not render in an output"
    assert "id=" not in text
    assert "style=" not in text


def test_the_fallback_is_complete():
    for name, table in DEMO.items():
        if table.get("kind") not in ("single", "multiple", "order"):
            continue
        widget = quiz(f"demo/{name}")
        read = Reader(html(widget))
        assert Reader(widget.data["prompt"]).seen in read.seen
        for choice in widget.data["choices"]:
            assert Reader(choice["text"]).seen in read.seen
            assert Reader(choice["why"]).seen in read.folded
            assert Reader(choice["why"]).seen not in read.seen
    numeric = Reader(html(quiz("demo/bytes")))
    for one in quiz("demo/bytes").data["sets"]:
        assert Reader(one["prompt"]).seen in numeric.seen
        assert one["answer"] in numeric.folded
        assert one["answer"] not in numeric.seen
    assert numeric.folded.count("Reduce-scatter alone.") == 3


def test_answers_are_folded_until_the_reader_opens_them():
    time = Reader(html(forecast("demo/time", answer=0.48)))
    assert "The model says 480 ms." in time.folded
    assert "480" not in time.seen
    assert "open what is hidden below" in time.seen
    claim = Reader(html(verdict("demo/claim")))
    assert "It does not hold." in claim.folded
    assert "eighth" not in claim.seen
    assert "1.75" not in html(hunch("demo/faster")).split("<script")[0]
    assert "1.75 arrays" in Reader(html(standing("demo"))).folded


def test_nothing_in_the_data_ends_its_element(tmp_path, monkeypatch):
    evil = "</script><!--<script>&lt;</details>"
    widget = quiz_of(tmp_path, monkeypatch, {"kind": "single", "see": "s", "prompt": evil, "choices": [
        {"text": evil, "why": evil, "right": True}, {"text": "b", "why": evil}]})
    read = Reader(html(widget))
    assert json.loads(read.scripts[0]) == widget.data
    assert evil in read.seen
    assert evil in read.folded


@given(st.text(alphabet="ab *`[]()<>&\"'#/.", max_size=60))
def test_rich_text_is_balanced_and_escaped(text):
    read = Reader(rich(text))
    assert read.tags <= {"strong", "em", "code", "a"}
    kept, given = (re.sub(r"[*`\[\]()#/.\s]", "", words) for words in (read.seen, text))
    assert kept == given or "a" in read.tags  # a link's address is not read


@pytest.mark.parametrize(("text", "expected"), [
    ("a * b * c, 2*n*m", "a * b * c, 2*n*m"), ("*one* **two**", "<em>one</em> <strong>two</strong>"),
    ("`a*b*c`", "<code>a*b*c</code>"), ("[x](javascript:alert)", "[x](javascript:alert)"),
    ("[x](../06_ring.ipynb#y)", '<a href="../06_ring.ipynb#y">x</a>'), ("[x](https://a.b/c?d=1&e=2)",
     '<a href="https://a.b/c?d=1&amp;e=2">x</a>'), ("[x](#a*b*c)", "[x](#a*b*c)"),
    ("**a *b* c**", "<strong>a <em>b</em> c</strong>"),
])
def test_rich_text(text, expected):
    assert rich(text) == expected


# --- what is refused ---------------------------------------------------------------------------------------------

def quiz_of(tmp_path, monkeypatch, table):
    write(tmp_path, q=table)
    monkeypatch.setattr(questions, "FOLDER", tmp_path)
    makers = {"verdict": verdict, "hunch": hunch, "forecast": lambda key: forecast(key, answer=0.48)}
    return makers.get(table["kind"], quiz)("x/q")


def changed(name, edit):
    table = copy.deepcopy(DEMO[name]) | {"see": "there"}
    table.pop("objective", None)
    edit(table)
    return table


def second_right(t):
    t["choices"][1]["right"] = True


def none_right(t):
    del t["choices"][0]["right"]


def all_right(t):
    for choice in t["choices"]:
        choice["right"] = True


def same_text(t):
    t["choices"][1]["text"] = t["choices"][0]["text"].upper()


def no_why(t):
    del t["choices"][0]["why"]


def setting(field, value):
    def edit(t):
        t[field] = value
    return edit


def choice_setting(field, value):
    def edit(t):
        t["choices"][0][field] = value
    return edit


def mistake(value):
    def edit(t):
        t["mistakes"].append({"value": value, "why": "w"})
    return edit


REFUSED = [
    ("before", second_right, "2 choices are right"), ("before", none_right, "0 choices are right"),
    ("grows", all_right, "3 of 3"), ("before", same_text, "coincide"), ("before", no_why, "why"),
    ("steps", setting("key", "steps('ring', ranks) + 1"), "0 choices are right"),
    ("steps", setting("key", "14"), "literal"), ("steps", setting("key", "step('ring', ranks)"), "near names: steps"),
    ("steps", choice_setting("value", "ranks"), "coincide"),
    ("steps", choice_setting("right", True), "none says right"),
    ("steps", setting("keys", "1"), "near names: key"), ("steps", setting("prompt", "{rank}?"), "near names: ranks"),
    ("steps", setting("objective", "z"), "objective 'z'"), ("steps", setting("choices", []), "two to six"),
    ("bytes", mistake("key * 1.01"), "cannot be told from the answer"),
    ("bytes", mistake("key / 2.01"), "cannot be told from another mistake"),
    ("bytes", setting("key", "size * 0"), "not zero"), ("bytes", setting("unit", "Gb"), "unit 'Gb'"),
    ("bytes", setting("given", []), "given"), ("bytes", setting("mistakes", [{"value": "size"}]), "why"),
    ("claim", setting("verdict", "false"), "does not hold"), ("order", choice_setting("right", True), "order"),
    ("time", mistake("480e-3"), "cannot be told"),
    ("faster", setting("kind", "hunches"), "hunches"),
]


@pytest.mark.parametrize(("name", "edit", "message"), REFUSED)
def test_refused(tmp_path, monkeypatch, name, edit, message):
    table = changed(name, edit)
    with pytest.raises((ValueError, LookupError), match=re.escape(message)) as caught:
        quiz_of(tmp_path, monkeypatch, table)
    assert "'x/q'" in str(caught.value)


@pytest.mark.parametrize("name", [name for name in DEMO if name != "objectives"])
def test_the_same_tables_without_the_fault_pass(tmp_path, monkeypatch, name):
    quiz_of(tmp_path, monkeypatch, changed(name, lambda t: None))


def test_names_are_checked():
    with pytest.raises(LookupError, match="demo/step'.*near names: steps"):
        quiz("demo/step")
    with pytest.raises(LookupError, match="'demos'.*demo"):
        quiz("demos/steps")
    with pytest.raises(ValueError, match="is of kind 'hunch', not single"):
        quiz("demo/faster")
    with pytest.raises(ValueError, match="not forecast"):
        forecast("demo/bytes", answer=1)
    with pytest.raises(ValueError, match="finite"):
        forecast("demo/time", answer=float("nan"))


def test_check_lists_all_that_is_wrong(tmp_path, monkeypatch):
    single = {"kind": "single", "objective": "a", "prompt": "p",
              "choices": [{"text": "x", "why": "w", "right": True}, {"text": "y", "why": "w"}]}
    wrong = {**single, "choices": [{"text": "x", "why": "w"}, {"text": "y", "why": "w"}]}
    tables = {"objectives": {"a": {"says": "s"}, "b": {"says": "t"}}, "bad": wrong}
    tables |= {f"q{i}": single for i in range(4)}
    write(tmp_path, **tables)
    monkeypatch.setattr(questions, "FOLDER", tmp_path)
    problems = questions.check("x")
    assert len(problems) == 3
    assert any("x/bad" in p for p in problems)
    assert any("number 1" in p for p in problems)
    assert any("'b' has 0" in p for p in problems)


@pytest.mark.parametrize("path", sorted(questions.FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_the_book_s_questions(path, monkeypatch):
    monkeypatch.setattr(questions, "FOLDER", path.parent)
    assert questions.check(path.stem) == []


# --- live, and in the page ---------------------------------------------------------------------------------------

def test_standing_sees_what_other_widgets_know():
    where = standing("demo")
    steps = quiz("demo/steps")
    steps.state = {"answer": 1, "right": True, "first": True, "tries": 1}
    assert where.others["demo/steps"]["right"] is True
    quiz("demo/steps")  # the cell is run again
    assert where.others["demo/steps"] == {}
    assert set(where.data["watch"]) == {f"demo/{name}" for name in DEMO if name != "objectives"}
    assert [(o["letter"], [q["key"] for q in o["questions"]]) for o in where.data["objectives"]] == [
        ("", ["demo/before"]), ("a", ["demo/bytes", "demo/order"]), ("b", ["demo/steps", "demo/grows"])]


def test_every_module_stands_alone_and_all_are_small():
    parts = {path.name: path.read_text("utf-8") for path in base.FOLDER.iterdir() if path.suffix in (".js", ".css")}
    for name, text in parts.items():
        if name.endswith(".js") and name != "book.js":
            assert "export default { render" in text
            assert not re.search(r"^\s*import\b|\bimport\(", text, re.MULTILINE), f"{name} imports"
        assert "http" not in text.replace("http://www.w3.org/", "")
    assert len(gzip.compress("".join(parts.values()).encode())) < 60_000
    assert {widget.module + ".js" for widget in all_widgets()} | {"book.js"} == {n for n in parts if n.endswith(".js")}


# --- chunks on the move ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("algorithm", [
    "ring", "halving-doubling", "recursive-doubling", "tree", "double-tree", "parameter-server"])
def test_a_stepper_ends_with_the_whole_sum_everywhere(algorithm, ranks):
    steps = schedule(algorithm, ranks)
    frames = stepper("k", "t", ranks, steps).data["frames"]
    # an independent run: rank r starts with 10^r in each chunk, so the decimal digits count each rank's contributions
    chunks = len(frames[0]["held"][0])
    arrays = [[10**rank] * chunks for rank in range(ranks)]
    for step, frame in zip([[], *steps], frames, strict=True):
        before = [list(row) for row in arrays]
        for src, dst, some, op in step:
            for chunk in some:
                arrays[dst][chunk] = before[src][chunk] + (arrays[dst][chunk] if op == "add" else 0)
        assert frame["held"] == [[int(str(value), 2) for value in row] for row in arrays]
    assert {value for row in arrays for value in row} == {int("1" * ranks)}
    assert frames[-1]["say"].endswith("every rank holds the whole sum.")


def test_ring_halfway_each_rank_holds_one_complete_chunk():
    frames = stepper("k", "t", 5, schedule("ring", 5)).data["frames"]
    complete = [[mask == 31 for mask in row] for row in frames[4]["held"]]
    assert all(sum(row) == 1 for row in complete)
    assert all(sum(column) == 1 for column in zip(*complete, strict=True))
    assert "whole sum" not in frames[4]["say"]


def test_a_stepper_refuses_what_cannot_be():
    twice = [[(0, 1, 0, "add")], [(0, 1, 0, "add")]]
    with pytest.raises(ValueError, match="step 2: rank 1 would add .* twice"):
        stepper("k", "t", 2, twice)
    with pytest.raises(ValueError, match="step 1: its moves"):
        stepper("k", "t", 2, [{"moves": [(0, 1, 0, "add")], "state": [[[0]], [[1]]]}])
    for move in [(0, 0, 0, "add"), (0, 2, 0, "add"), (0, 1, 0, "sum"), (0, 1, [], "add"), (0, 1, -1, "copy")]:
        with pytest.raises(ValueError, match="move"):
            stepper("k", "t", 2, [[move]])
    with pytest.raises(ValueError, match="ranks=17"):
        stepper("k", "t", 17, [])


def test_a_stepper_takes_given_words_and_states():
    widget = stepper("k", "Two *ranks*", 2, [
        {"say": "First `add`.", "moves": [{"src": 0, "dst": 1, "chunk": 0, "op": "add"}], "state": [[[0]], [[0, 1]]]},
        [(1, 0, (0,), "copy")]])
    assert [frame["say"] for frame in widget.data["frames"][1:]] == [
        "First <code>add</code>.",
        "Rank 1 sends one chunk to rank 0; what arrives replaces what was there. Now every rank holds the whole sum."]
    read = Reader(html(widget))
    assert "rank 1 → rank 0: chunk 0" in read.folded
    assert "rank 0: chunk 0; rank 1: chunk 0" in read.folded


def test_a_stepper_s_words_name_who_sends():
    server = stepper("k", "t", 4, schedule("parameter-server", 4)).data["frames"]
    assert server[1]["say"] == "Ranks 1, 2 and 3 send one chunk to rank 0; what arrives is added."
    sizes = {len(list(itertools.chain(*frame["moves"]))) for frame in server[1:]}
    assert sizes == {12}
