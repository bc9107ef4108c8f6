"""From a question's TOML table to what a widget shows; the format is the docstring of `quiz`.

Everything is computed here, whenever a question is shown: keys, choices' values, typical mistakes. What cannot be
right (two right answers, two choices that coincide, a mistake that would be accepted) is an error naming the key.
"""

import difflib
import hashlib
import tomllib
from pathlib import Path

from ..expressions import evaluate, fill, names_in
from . import measures
from .base import rich

FOLDER = Path(__file__).parent.parent / "data" / "questions"
VERDICTS = ("holds", "holds under a stated convention", "does not hold")
SCORED = ("single", "multiple", "numeric", "order")
_COMMON = {"kind", "prompt", "objective", "see", "given"}
_FIELDS = {
    "single": {"choices", "key"}, "multiple": {"choices"}, "order": {"choices"}, "hunch": {"choices", "answer"},
    "numeric": {"key", "unit", "tolerance", "why", "mistakes"}, "verdict": {"verdict", "why"},
    "forecast": {"unit", "tolerance", "why", "mistakes", "reveal", "title"},
}
_NEEDED = {
    "single": {"choices"}, "multiple": {"choices"}, "order": {"choices"}, "hunch": {"choices", "answer"},
    "numeric": {"key", "unit", "why", "mistakes"}, "verdict": {"verdict", "why"},
    "forecast": {"unit", "reveal", "title"},
}


def load(lesson):
    """The tables of ``data/questions/<lesson>.toml``."""
    path = FOLDER / f"{lesson}.toml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.toml"))) or "none"
        raise LookupError(f"no questions for lesson {lesson!r}; there are: {known}")
    return tomllib.loads(path.read_text("utf-8"))


def build(key, *kinds, **values):
    """The data of the question `key` ("06/ring-bytes"), which must be of one of `kinds`; `values` hold an `answer`."""
    lesson, _, name = key.partition("/")
    tables = load(lesson)
    objectives = tables.pop("objectives", {})
    if name not in tables:
        raise LookupError(f"no question {key!r}; {_near(name, tables, f'in {lesson}.toml')}")
    table = tables[name]
    kind = table.get("kind")
    if kind not in _FIELDS:
        raise ValueError(f"question {key!r}: kind {kind!r} is none of {', '.join(_FIELDS)}")
    if kinds and kind not in kinds:
        raise ValueError(f"question {key!r} is of kind {kind!r}, not {' or '.join(kinds)}")
    try:
        _check_fields(table, kind, objectives)
        objective = objectives.get(table.get("objective"), {})
        data = {"key": key, "kind": kind, "see": rich(table.get("see") or objective.get("see", ""))}
        maker = {"numeric": _numeric, "forecast": _forecast, "verdict": _verdict, "order": _order}.get(kind, _choices)
        return data | maker(table, key=key, **values)
    except (ValueError, LookupError) as error:
        raise type(error)(f"question {key!r}: {error}") from error


def _near(name, known, where):
    near = difflib.get_close_matches(name, list(known), 3, 0.4)
    return f"near names: {', '.join(near)}" if near else f"{where}: {', '.join(known) or 'nothing'}"


def _check_fields(table, kind, objectives):
    allowed = _COMMON | _FIELDS[kind]
    for field in sorted(set(table) - allowed):
        raise ValueError(f"field {field!r} is unknown for {kind!r}; {_near(field, sorted(allowed), 'allowed')}")
    for field in sorted((_NEEDED[kind] | {"prompt"}) - set(table)):
        raise ValueError(f"field {field!r} is missing")
    if table.get("objective", "") and table["objective"] not in objectives:
        raise ValueError(f"objective {table['objective']!r} is none of {', '.join(objectives) or 'none listed'}")
    if kind in SCORED and not (table.get("objective") or table.get("see")):
        raise ValueError("a scored question has an objective, or `see` for where a miss is sent")


def _given(table):
    """The given values of one set, each computed in turn."""
    names = {}
    for name, value in table.items():
        names[name] = evaluate(value, **names) if isinstance(value, str) else value
    return names


def _key(table, names):
    if not names_in(table["key"]):
        raise ValueError(f"key {table['key']!r} is a literal; it must be computed")
    return evaluate(table["key"], **names)


def _choices(table, key):
    kind, names = table["kind"], _given(table.get("given", {}))
    prompt = rich(fill(table["prompt"], **names))
    names |= {"key": _key(table, names)} if "key" in table else {}
    choices = []
    for choice in table["choices"]:
        own = names | ({"value": evaluate(choice["value"], **names)} if "value" in choice else {})
        unknown = set(choice) - {"text", "why", "right", "value"}
        if unknown or "text" not in choice or not (choice.get("why") or kind == "hunch"):
            raise ValueError(f"choice {choice!r} has text, why, maybe right or value, and nothing else")
        right = bool(choice.get("right"))
        if "key" in table:
            if "value" not in choice or "right" in choice:
                raise ValueError(f"choice {choice['text']!r}: with a key every choice has a value and none says right")
            right = measures.close(own["value"], names["key"], 1e-9)
        choices.append({"text": rich(fill(choice["text"], **own)), "why": rich(fill(choice.get("why", ""), **own)),
                        "right": right, **{name: own[name] for name in ("value",) if name in own}})
    _distinct(choices)
    _count_right(kind, choices)
    shown = [{name: choice[name] for name in ("text", "why", "right")} for choice in choices]
    return {"prompt": prompt, "choices": shown,
            **({"answer": rich(fill(table["answer"], **names))} if kind == "hunch" else {})}


def _distinct(choices):
    for i, one in enumerate(choices):
        for other in choices[:i]:
            same = "value" in one and "value" in other and measures.close(one["value"], other["value"], 1e-9)
            if same or one["text"].casefold() == other["text"].casefold():
                raise ValueError(f"choices {other['text']!r} and {one['text']!r} coincide")


def _count_right(kind, choices):
    right, total = sum(c["right"] for c in choices), len(choices)
    if not 2 <= total <= 6:
        raise ValueError(f"{total} choices; allowed are two to six")
    if kind == "single" and right != 1:
        raise ValueError(f"{right} choices are right; a single question has one")
    if kind == "multiple" and not 1 <= right < total:
        raise ValueError(f"{right} of {total} choices are right; some are and some are not")
    if kind in ("hunch", "order") and right:
        raise ValueError(f"{kind}: no choice says right")


def _order(table, key):
    data = _choices(table, key)
    places = range(len(data["choices"]))
    shown = sorted(places, key=lambda i: hashlib.sha256(f"{key}/{i}".encode()).hexdigest())
    if shown == list(places):
        shown = shown[1:] + shown[:1]
    return data | {"shown": shown}


def _verdict(table, key):
    if table["verdict"] not in VERDICTS:
        raise ValueError(f"verdict {table['verdict']!r} is none of {', '.join(VERDICTS)}")
    names = _given(table.get("given", {}))
    return {"prompt": rich(fill(table["prompt"], **names)), "why": rich(fill(table["why"], **names)),
            "choices": [{"text": text, "why": "", "right": text == table["verdict"]} for text in VERDICTS]}


def _numeric(table, key):
    tolerance = table.get("tolerance", 0.02)
    given = table.get("given", [{}])
    if not isinstance(given, list) or not given:
        raise ValueError("given is a list of sets, one or more")
    sets = []
    for values in given:
        names = _given(values)
        prompt = fill(table["prompt"], **names)
        sets.append(_number(table, names, _key(table, names), tolerance) | {"prompt": rich(prompt)})
    return {"sets": sets, "unit": table["unit"], "units": measures.accepted(table["unit"]), "tolerance": tolerance}


def _forecast(table, key, answer=None):
    tolerance = table.get("tolerance", 0.1)
    names = _given(table.get("given", {}))
    data = {"prompt": rich(fill(table["prompt"], **names)), "title": rich(fill(table["title"], **names)),
            "unit": table["unit"], "units": measures.accepted(table["unit"]), "tolerance": tolerance}
    if answer is None:  # listed by `standing` or `check`, not asked
        return data
    return data | _number(table, names, float(f"{float(answer):.6g}"), tolerance)


def _number(table, names, key, tolerance):
    """A right value, its text, and the mistakes that can be recognized; all values in SI units."""
    unit, key = table["unit"], float(key)
    if key == 0 or not abs(key) < float("inf"):
        raise ValueError(f"the answer is {key}; it must be finite and not zero")
    names = names | {"key": key, "answer": measures.shown(key, unit)}
    mistakes = []
    for mistake in table.get("mistakes", []):
        if set(mistake) != {"value", "why"}:
            raise ValueError(f"mistake {mistake!r} has a value and a why, and nothing else")
        value = float(evaluate(mistake["value"], **names))
        for what, taken in [("the answer", key), *(("another mistake", m["value"]) for m in mistakes)]:
            if measures.close(value, taken, tolerance):
                raise ValueError(f"mistake {mistake['value']!r} = {value:.6g} cannot be told from {what} {taken:.6g}")
        why = rich(fill(mistake["why"], **names | {"value": value}))
        mistakes.append({"value": value, "shown": measures.shown(value, unit), "why": why, "own": True})
    for factor, why in measures.slips(unit):
        if not any(measures.close(key * factor, taken, tolerance) for taken in [key, *(m["value"] for m in mistakes)]):
            mistakes.append({"value": key * factor, "why": why, "own": False})
    texts = {field: rich(fill(table[field], **names)) for field in ("why", "reveal") if field in table}
    return {"value": key, "answer": names["answer"], "mistakes": mistakes, "why": ""} | texts


def check(lesson):
    """What is wrong with a lesson's questions: a list of sentences, empty when all keys recompute.

    Beyond each question: every objective has two scored questions, and the right choice is not always the same one.
    """
    tables = load(lesson)
    objectives = tables.pop("objectives", {})
    problems, places = [], []
    for name, table in tables.items():
        try:
            data = build(f"{lesson}/{name}", **({"answer": 1.0} if table.get("kind") == "forecast" else {}))
        except (ValueError, LookupError) as error:
            problems.append(str(error))
            continue
        if data["kind"] == "single":
            places.append([choice["right"] for choice in data["choices"]].index(True))
    if len(places) >= 4 and len(set(places)) == 1:
        problems.append(f"the right choice of all {len(places)} single questions is number {places[0] + 1}")
    for letter in objectives:
        count = sum(t.get("objective") == letter and t.get("kind") in SCORED for t in tables.values())
        if count < 2:
            problems.append(f"objective {letter!r} has {count} scored questions; it needs two")
    return problems
