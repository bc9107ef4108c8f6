"""Write book/reference/validation.md: every published value beside ours, from the registry the tests check.

python tools/validation.py            write the page
python tools/validation.py --check    exit 1 if the page is not what would be written
"""

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


def row(result):
    unit = str(result.row["unit"]) if not result.part else ""
    part = f" ({result.part.strip('[]')})" if result.part else ""
    cells = [f"{result.row['statement']}{part}", f"{result.published:.4g} {unit}".strip(), f"{result.ours:.4g}",
             f"{100 * result.error:+.1f} %", result.kind, result.row["source"], result.note]
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ").replace("$", "\\$") for cell in cells) + " |"


HEAD = "| published | value | ours | error | kind | source | why they differ |\n|---|--:|--:|--:|---|---|---|"


def page():
    reasons, found = results()
    kinds = Counter(result.kind for result in found)
    differ = [r for r in found if abs(r.ours - r.published) > r.printed]
    exact = [r for r in found if abs(r.ours - r.published) <= r.printed]
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
        "## Beyond the printed precision", "", HEAD, *map(row, differ), "",
        "## Within the printed precision", "",
        f"````{{dropdown}} All {len(exact)} of them", HEAD, *map(row, exact), "````", "",
        "## Not reproduced", "",
        f"{len(reasons)} collected rows have no formula of this book behind them.", "",
        "````{dropdown} Which, and why", "| published | why not |", "|---|---|",
        *(f"| {published.rows()[id]['statement'].replace('|', '/')} | {why} |" for id, why in sorted(reasons.items())),
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
