"""The house keeps its rooms apart, its modules short and its text free of what belongs to one machine."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "lib" / "clusterlab"
MODULES = sorted(PACKAGE.rglob("*.py"))
MATH = [path for path in MODULES if path.parent == PACKAGE and path.name != "__init__.py"]
LONGEST = 320

# Written so that this file passes its own test.
FORBIDDEN = {
    "a folder that readers do not have": re.compile(r"\.\.[/]shared\b"),
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:work|root|home/\w+)/"),
    "a package index": re.compile(r"(?:pypi|files[.]pythonhosted|download[.]pytorch|deb[.]debian)[.]org|registry[.]npmjs"),
}


def room(path):
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "math"


def imported(tree, path):
    """Absolute names of what a module imports, wherever in it."""
    package = ("clusterlab", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[:len(package) + 1 - node.level]) if node.level else ""
            name = ".".join(filter(None, (base, node.module)))
            yield from (f"{name}.{alias.name}" for alias in node.names)


def trespasses(tree, path):
    """Imports that cross a boundary: the rooms know MATH, not each other; MATH knows numpy."""
    here, found = room(path), []
    for name in imported(tree, path):
        top, rest = name.split(".")[0], name.split(".")[1:]
        there = rest[0] if top == "clusterlab" and rest and rest[0] in ("run", "widgets") else None
        if there and there != here:
            found.append(f"{here} imports {name}")
        if top == "torch" and here != "run":
            found.append(f"torch outside run: {name}")
        if top == "networkx" and path.stem != "topology":
            found.append(f"networkx outside topology: {name}")
        if here == "math" and top in ("ipywidgets", "anywidget", "traitlets", "IPython", "matplotlib", "scipy", "pandas"):
            found.append(f"mathematics imports {name}")
    if here == "math":
        eager = [name for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
                 for name in imported(ast.Module([node], []), path) if name.split(".")[0] == "networkx"]
        found += [f"{name} is imported before it is needed" for name in eager]
    return found


def undocumented(tree):
    """Public functions whose docstring is missing or has no example."""
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
            and ">>> " not in (ast.get_docstring(node) or "")]


def tracked():
    """Paths of the repository's own files; in an unpacked archive, all but what tools leave behind."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    if done.returncode == 0:
        return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    left = {"_build", "__pycache__"}
    return [path for path in ROOT.rglob("*") if path.is_file()
            and not any(part in left or part.startswith(".") for part in path.relative_to(ROOT).parts)]


def forbidden(text):
    return [f"{what}: {found.group()}" for what, pattern in FORBIDDEN.items() for found in pattern.finditer(text)]


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_rooms_do_not_reach_into_each_other(path):
    assert trespasses(ast.parse(path.read_text("utf-8")), path) == []


@pytest.mark.parametrize("path", MATH, ids=name_of)
def test_public_mathematics_has_examples(path):
    assert undocumented(ast.parse(path.read_text("utf-8"))) == []


def test_modules_are_short():
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines())
               for path in [*MODULES, *ROOT.glob("tools/*.py")]}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_code_is_clean():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--output-format", "concise"], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_files_name_no_machine_and_no_index():
    found = {}
    for path in tracked():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # an image
        if problems := forbidden(text):
            found[name_of(path)] = problems
    assert found == {}


def test_the_house_has_no_lumber_room():
    names = [name_of(path) for path in tracked()]
    assert [name for name in names if name.startswith(("src/", "docs/")) or Path(name).name == "utils.py"] == []


@pytest.mark.parametrize("where, source", [
    ("units.py", "import torch"),
    ("units.py", "def f():\n    from torch import nn"),
    ("units.py", "from .run import ranks"),
    ("units.py", "from clusterlab.widgets import quiz"),
    ("units.py", "from . import widgets"),
    ("collectives.py", "def f():\n    import networkx"),
    ("topology.py", "import networkx as nx"),
    ("run/ranks.py", "from ..widgets.quiz import quiz"),
    ("run/ranks.py", "from .. import widgets"),
    ("widgets/quiz.py", "import clusterlab.run.ranks"),
    ("widgets/quiz.py", "import torch.distributed"),
])
def test_a_trespass_is_seen(where, source):
    assert trespasses(ast.parse(source), PACKAGE / where) != []


@pytest.mark.parametrize("where, source", [
    ("units.py", "import numpy as np\nfrom . import hardware"),
    ("topology.py", "def f():\n    import networkx"),
    ("run/ranks.py", "import torch\nfrom .. import collectives\nfrom . import links"),
    ("widgets/quiz.py", "from .base import Widget\nfrom ..units import MB"),
])
def test_an_open_door_is_no_trespass(where, source):
    assert trespasses(ast.parse(source), PACKAGE / where) == []


def test_faults_of_text_are_seen():
    assert undocumented(ast.parse("def f():\n    'No example.'\n\ndef _g(): pass\n\ndef h():\n    '>>> 1'")) == ["f"]
    for text in ("see ..|shared|x", "open('|work|x')", "pip -i https:||pypi|org|simple", "|home|ann|x"):
        assert forbidden(text.replace("pypi|", "pypi.").replace("|", "/")), text
    assert forbidden("frame/work/x, ~/work/ and ./home/") == []
