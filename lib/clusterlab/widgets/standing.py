"""Where you stand: standing("06") at the end of a lesson shows its objectives with results and a link for each miss."""

import traitlets

from .base import Widget, rich
from .questions import SCORED, build, load


class Standing(Widget):
    """The lesson's objectives, forecasts and hunches beside what the reader did with them."""

    module = "standing"
    others = traitlets.Dict().tag(sync=True)

    def fallback(self):
        data = self.data
        items = "".join(f"<li>{o['says']}{' (' + o['see'] + ')' if o['see'] else ''}</li>" for o in data["objectives"])
        parts = ["<p><strong>You should now be able to…</strong> What you cannot yet, read again.</p>",
                 f"<ul>{items}</ul>"]
        for one in data["hunches"]:
            parts.append(f"<p><strong>Your hunch at the start.</strong> {one['prompt']}</p>\n"
                         f"<details><summary>What came of it</summary><p>{one['answer']}</p></details>")
        return "\n".join(parts)


def standing(lesson):
    """Results of the questions in ``data/questions/<lesson>.toml``, as far as they stand on this page."""
    tables = load(lesson)
    objectives = tables.pop("objectives", {})
    built = {name: build(f"{lesson}/{name}") for name in tables}
    groups = [{"says": rich(o["says"]), "see": rich(o.get("see", "")), "letter": letter,
               "questions": _scored(built, tables, letter)} for letter, o in objectives.items()]
    if before := _scored(built, tables, None):
        groups.insert(0, {"says": "from earlier lessons, what this one builds on", "see": "", "letter": "",
                          "questions": before})
    data = {
        "key": f"{lesson}/standing", "objectives": groups,
        "forecasts": [{"key": d["key"], "title": d["title"]} for d in built.values() if d["kind"] == "forecast"],
        "hunches": [{"key": d["key"], "prompt": d["prompt"], "answer": d["answer"], "choices": d["choices"]}
                    for d in built.values() if d["kind"] == "hunch"],
        "watch": [d["key"] for d in built.values()],
    }
    return Standing(data=data)


def _scored(built, tables, letter):
    return [{"key": data["key"], "see": data["see"]} for name, data in built.items()
            if data["kind"] in SCORED and tables[name].get("objective") == letter]
