"""Change the formulas one operation at a time and count how many changes their tests notice (about an hour).

python tools/mutants.py [MODULE…]    all of MATH, or the named modules (`collectives plan`)

Messages of errors are left out. A mutant that changes nothing anyone can see is listed, with the reason, in
tests/equivalent_mutants.toml; the others that survive are printed.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "_build" / "mutants"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.toml"
NOT_MATH = re.compile(r"clusterlab[. ](?:import )?(?:run|widgets)\b|open_page|\bbuilt\b|\bconftest\b")
UNNOTICED = (0, 5, 33)  # pytest passed, or ran no test


def lay_out(modules):
    """A tree with the formulas, their data and their tests; mutmut wants the package at its top."""
    shutil.rmtree(WORK, ignore_errors=True)
    math = shutil.ignore_patterns("run", "widgets", "__pycache__")
    shutil.copytree(ROOT / "lib" / "clusterlab", WORK / "clusterlab", ignore=math)
    (WORK / "tests").mkdir()
    shutil.copytree(ROOT / "tests" / "fixtures", WORK / "tests" / "fixtures")
    for path in (ROOT / "tests").glob("*.py"):
        if path.name != "conftest.py" and not NOT_MATH.search(path.read_text("utf-8")):
            shutil.copy(path, WORK / "tests")
    chosen = json.dumps([f"clusterlab/{name}.py" for name in modules] or ["clusterlab/*.py"])
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    (WORK / "pyproject.toml").write_text(f"{settings}only_mutate = {chosen}\n", "utf-8")


def difference(name):
    """The lines a mutant takes and gives, without indentation."""
    shown = subprocess.run(["mutmut", "show", name], cwd=WORK, capture_output=True, text=True, check=True).stdout
    lines = [(line[0], line[1:].strip()) for line in shown.splitlines() if re.match(r"[-+](?![-+])", line)]
    return tuple(" ".join(text for sign, text in lines if sign == wanted) for wanted in "-+")


def main(modules):
    lay_out(modules)
    subprocess.run(["mutmut", "run"], cwd=WORK, check=False)
    codes = {name: code for path in sorted((WORK / "mutants").rglob("*.meta"))
             for name, code in json.loads(path.read_text("utf-8"))["exit_code_by_key"].items()}
    if not codes or None in codes.values():
        sys.exit("mutmut did not finish: the tests must pass before they are run against mutants.")
    listed = tomllib.loads(EQUIVALENT.read_text("utf-8"))["mutant"] if EQUIVALENT.exists() else []
    known = {(entry["was"], entry["becomes"]) for entry in listed if entry["reason"]}
    survivors = {name: difference(name) for name, code in codes.items() if code in UNNOTICED}
    open_ones = {name: lines for name, lines in survivors.items() if lines not in known}
    for name, (was, becomes) in open_ones.items():
        print(f"{name}\n  - {was}\n  + {becomes}")
    equivalent = len(survivors) - len(open_ones)
    others = len(codes) - equivalent
    print(f"{len(codes)} mutants, {equivalent} listed as equivalent; "
          f"of the others {others - len(open_ones)} ({1 - len(open_ones) / others:.1%}) were noticed")


if __name__ == "__main__":
    main(sys.argv[1:])
