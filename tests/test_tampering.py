"""The checks can fail: a sample of constants, expressions, keys and printed numbers is changed, each turns a check red."""

import copy
import dataclasses
import json
import re

import prose
import pytest
from clusterlab import hardware, numbers, widgets
from clusterlab.widgets import questions

DERIVED = [id for id, entry in numbers.registry().items() if entry.expression]


def red(id, **changes):
    """Whether the check of a number fails once the entry is changed."""
    entry = numbers.registry()[id]
    changed = numbers.Number(**{**vars(entry), **changes})
    original, table = numbers.registry, {**numbers.registry(), id: changed}
    try:
        numbers.registry = lambda: table
        numbers.check(id)
    except (AssertionError, ValueError):
        return True
    finally:
        numbers.registry = original
    return False


@pytest.mark.parametrize("id", DERIVED)
def test_a_changed_expression_turns_red(id):
    assert red(id, expression=f"2 * ({numbers.number(id).expression})")


@pytest.mark.parametrize("id", DERIVED)
def test_a_changed_display_turns_red(id):
    display = numbers.number(id).display
    digit = re.search(r"\d(?=\D*$)", display)
    other = display[:digit.start()] + str((int(digit[0]) + 1) % 10) + display[digit.end():]
    assert red(id, display=other)


def test_a_changed_constant_turns_numbers_red(monkeypatch):
    link = hardware.link("NVLink 4")
    slower = dataclasses.replace(link, per_link=link.per_link * 0.9)
    monkeypatch.setattr(hardware, "link", lambda name: slower)
    failed = [id for id in DERIVED if "'NVLink 4'" in numbers.number(id).expression and not holds(id)]
    assert len(failed) >= 5


def holds(id):
    try:
        numbers.check(id)
    except AssertionError:
        return False
    return True


def test_a_changed_number_in_prose_turns_red():
    page = next(page for page in prose.pages() if page.linked)
    display, id = page.linked[0]
    assert numbers.number(id).display == display
    changed = tuple(p.replace(f"[{display}](#num-{id})", f"[{display}9](#num-{id})") for p in page.paragraphs)
    tampered = prose.Page(page.path, changed, page.code)
    assert any(shown != numbers.number(id).display for shown, id in tampered.linked)


def stored_outputs():
    """{question: HTML stored in a notebook}."""
    found = {}
    for path in [*prose.ROOT.glob("lessons/*.ipynb"), *prose.ROOT.glob("book/**/*.ipynb")]:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            call = re.match(r'(quiz|hunch|verdict)\("([^"]+)"\)', "".join(cell["source"]))
            if call and cell["outputs"]:
                found[call[2]] = call[1], "".join(cell["outputs"][0]["data"]["text/html"])
    return found


STORED = stored_outputs()


def tamper(table):
    """The same question with another right answer."""
    table = copy.deepcopy(table)
    if "key" in table:
        table["key"] = f"1.5 * ({table['key']})"
    elif table["kind"] == "verdict":
        table["verdict"] = next(v for v in questions.VERDICTS if v != table["verdict"])
    elif table["kind"] == "order":
        table["choices"].reverse()
    elif table["kind"] == "hunch":
        table["answer"] += " Not."
    else:
        rights = [choice.pop("right", False) for choice in table["choices"]]
        table["choices"][(rights.index(True) + 1) % len(rights)]["right"] = True
    return table


@pytest.mark.parametrize("key", sorted(STORED))
def test_a_changed_key_turns_red(key, monkeypatch):
    lesson, name = key.split("/")
    kind, html = STORED[key]
    show = getattr(widgets, kind)
    assert show(key)._repr_mimebundle_()[0]["text/html"] == html, "the stored output is not what the question says"
    tables = questions.load(lesson)
    monkeypatch.setattr(questions, "load", lambda _: copy.deepcopy(tables) | {name: tamper(tables[name])})
    try:
        assert show(key)._repr_mimebundle_()[0]["text/html"] != html
    except ValueError:
        pass  # the question no longer builds
