"""Write book/reference/validation.md: every published value beside ours, from the registry the tests check.

python tools/validation.py            write the page
python tools/validation.py --check    exit 1 if the page is not what would be written
"""

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "book" / "reference" / "validation.md"
sys.path.insert(0, str(ROOT / "tests"))

import published


def results():
    """(reasons of the rows without a formula, every number compared), worst error first."""
    reasons = published.load()
    found = [result for ways in published.REGISTRY.values() for way in ways for result in published.compare(way)]
    return reasons, sorted(found, key=lambda r: (-abs(r.error), r.id, r.part))


def escaped(text):
    """Text that Markdown reads as it stands."""
    return re.sub(r"([$*|<\[])", r"\\\1", text.replace("\n", " "))


def part(result):
    return f" ({result.part.strip('[]')})" if result.part else ""


def row(result, reason):
    """A row of the table: `reason` is the number of the note below it."""
    unit = str(result.row["unit"]) if not result.part else ""
    cells = [f"{result.row['statement']}{part(result)}", f"{result.published:.4g} {unit}".strip(), f"{result.ours:.4g}",
             f"{100 * result.error:+.1f} %", result.kind]
    return "| " + " | ".join([*map(escaped, cells), f"[{reason}](#why-{reason})"]) + " |"


def plain(results):
    """Many numbers as lines of text, by source and row: a table's cells would keep a browser busy for minutes."""
    lines = []
    for source, group in grouped(results, lambda r: r.row["source"]):
        lines += ["", f"# {source}"]
        for _, of_row in grouped(group, lambda r: r.id):
            first = of_row[0]
            unit, note = " ".join(str(first.row["unit"]).split()), f" · {first.note}" if first.note else ""
            lines.append(f"{first.row['statement']} [{unit}] · {first.kind}{note}".replace("\n", " "))
            lines += [f"    {r.published:<10.4g} {r.ours:<10.4g} {100 * r.error:+7.2f} %{part(r)}" for r in of_row]
    return lines[1:]


def grouped(results, name):
    """(name, its results) in the order in which the names first occur."""
    found = {}
    for result in results:
        found.setdefault(name(result), []).append(result)
    return found.items()


HEAD = "| published | value | ours | error | kind | why |\n|---|--:|--:|--:|---|--:|"


def page():
    reasons, found = results()
    kinds = Counter(result.kind for result in found)
    differ = [r for r in found if abs(r.ours - r.published) > r.printed]
    exact = [r for r in found if abs(r.ours - r.published) <= r.printed]
    notes = list(dict.fromkeys((r.note, r.row["source"]) for r in differ))
    why = {note: number for number, note in enumerate(notes, start=1)}
    lines = [
        "# Validation: published values beside ours", "",
        (f"The tests compute {len(found)} published numbers from their published inputs. "
        f"{len(exact)} agree within the precision they were printed to; the other {len(differ)} stand below, the worst "
        "first, with the reason."), "",
        f"- *predicted* ({kinds['predicted']}): the formula or model has seen none of these values.",
        f"- *calibrated* ({kinds['calibrated']}): a constant of the model was fitted to them; they prove nothing.",
        (f"- *definition* ({kinds['definition']}): the value follows from a definition or stands in our data; agreement "
        "shows that the convention is understood."), "",
        "Errors are relative, ours minus published. A row may hold several numbers; the part is named in brackets.", "",
        "## Beyond the printed precision", "", HEAD, *(row(r, why[r.note, r.row["source"]]) for r in differ), "",
        "### Why they differ", "",
        *(f"(why-{number})=\n**{number}** · {escaped(note)}. *Source:* {escaped(source)}.\n"
          for (note, source), number in why.items()),
        "## Within the printed precision", "",
        "By source: the row with its unit in brackets and its kind; then published, ours and the error.", "",
        f"````{{dropdown}} All {len(exact)} of them", "```text", *plain(exact), "```", "````", "",
        "## Not reproduced", "",
        f"{len(reasons)} collected rows have no formula of this book behind them.", "",
        "````{dropdown} Which, and why",
        *(f"- {escaped(published.rows()[id]['statement'])}: *{escaped(why)}*" for id, why in sorted(reasons.items())),
        "````", "",
    ]
    return "\n".join(lines)


def main():
    text = page()
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text("utf-8") != text and f"{PAGE.name} is not up to date: python tools/validation.py")
    PAGE.write_text(text, "utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {text.count(chr(10))} lines")


if __name__ == "__main__":
    main()
