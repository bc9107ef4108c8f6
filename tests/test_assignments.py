"""Assignments: what students get follows from the solution, right answers earn all points, wrong ones what they should.

The slow part plays a class: students hand in notebooks, nbgrader grades them, and the gradebook is read.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from clusterlab import collectives
from clusterlab.hardware import Link
from conftest import ROOT
from execute import canonical
from test_notebooks import not_executed_in_order, traces_of_a_machine, unknown_tags, widget_models

SOLUTIONS = sorted(ROOT.glob("solutions/*/*.ipynb"))
each_solution = pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
A06 = "06_allreduce"


def nbgrader(course, *arguments):
    """Run an nbgrader command in a course's folder; it calls alembic by name."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [str(Path(sys.executable).with_name("nbgrader")), *arguments]
    done = subprocess.run(command, cwd=course, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}:\n{done.stderr[-3000:]}"


def course_in(folder):
    shutil.copytree(ROOT / "solutions", folder / "solutions", ignore=shutil.ignore_patterns(".*"))
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    return folder


def graded_cells(notebook):
    """{grade id: cell} of the cells that nbgrader knows."""
    return {cell.metadata.nbgrader.grade_id: cell for cell in notebook.cells if "nbgrader" in cell.metadata}


def source(name, grade_id, folder="solutions"):
    return graded_cells(nbformat.read(ROOT / folder / name / f"{name}.ipynb", as_version=4))[grade_id].source


# ---- what is stored -------------------------------------------------------------------------------------------------


@each_solution
def test_solution_is_a_sound_notebook(path):
    text = path.read_text("utf-8")
    notebook = nbformat.reads(text, as_version=4)
    assert text == canonical(notebook), f"run: python tools/execute.py --fix {path}"
    for check in (not_executed_in_order, unknown_tags, traces_of_a_machine, widget_models):
        assert check(notebook) == []


@each_solution
def test_points_add_up_and_ids_differ(path):
    cells = [cell.metadata.nbgrader for cell in nbformat.read(path, as_version=4).cells if "nbgrader" in cell.metadata]
    assert sum(cell.get("points", 0) for cell in cells) == 100
    assert len({cell.grade_id for cell in cells}) == len(cells)


def released(cell):
    """What is left of a solution's cell for students; written again here, as a check on nbgrader and on our markers."""
    given, text = cell.metadata.get("nbgrader", {}), cell.source
    if given.get("solution") and cell.cell_type == "markdown":
        return "*Your answer here.*"
    stub = r"\1# your code here\n\1raise NotImplementedError"
    text = re.sub(r"^( *)# BEGIN SOLUTION\n.*?# END SOLUTION", stub, text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\n### BEGIN HIDDEN TESTS\n.*?### END HIDDEN TESTS", "", text, flags=re.DOTALL)


@each_solution
def test_exercise_is_the_solution_without_its_solutions(path):
    exercise = nbformat.read(ROOT / "exercises" / path.relative_to(ROOT / "solutions"), as_version=4)
    assert [cell.source for cell in exercise.cells] == [released(cell) for cell in nbformat.read(path, as_version=4).cells]
    assert not any(cell.get("outputs") for cell in exercise.cells)


@pytest.mark.slow
def test_exercises_are_what_nbgrader_makes(tmp_path):
    course = course_in(tmp_path)
    for name in sorted({path.parent.name for path in SOLUTIONS}):
        nbgrader(course, "generate_assignment", "--no-db", name)
    made, stored = ({str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*")
                     if path.is_file() and ".ipynb_checkpoints" not in path.parts}
                    for root in (course / "exercises", ROOT / "exercises"))
    assert sorted(made) == sorted(stored)
    assert [name for name in made if made[name] != stored[name]] == [], "run: make exercises"


# ---- assignment 06: its oracle against the library ------------------------------------------------------------------


def hidden_test_of_pick():
    """What the hidden test defines, and the cases it asks, in "asked"."""
    names = {"asked": []}
    names["check_pick"] = names["asked"].extend
    exec(source(A06, "test-2c"), names)  # noqa: S102 (our own notebook)
    return names


def test_the_hidden_oracle_agrees_with_the_library():
    messages = hidden_test_of_pick()["messages"]
    for name in ("ring", "recursive-doubling", "halving-doubling", "tree", "parameter-server"):
        for n in range(2, 65):
            shares, busiest = messages(name, n)
            link = Link("any", per_link=7.0, latency=0.3)
            assert len(shares) == collectives.steps(name, n)
            assert np.isclose(busiest, collectives.bytes_sent(name, 1.0, n), rtol=1e-12)
            assert np.isclose(sum(0.3 + share / 7.0 for share in shares),
                              collectives.all_reduce_seconds(1.0, n, link, algorithm=name), rtol=1e-12)


def test_the_hidden_cases_ask_for_every_answer():
    rights = [right for _, right in hidden_test_of_pick()["asked"]]
    for name in ("ring", "recursive-doubling", "halving-doubling", "parameter-server", None):
        assert sum(right == [name] for right in rights) >= 5, name


# ---- assignment 06: a class hands in --------------------------------------------------------------------------------

NO_FOLDING = """
def my_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    stretch, done, distance = x, [], 1 << n.bit_length() - 2 if n > 1 else 0
    while distance:
        peer, half = rank ^ distance, len(stretch) // 2
        keep, give = (stretch[:half], stretch[half:]) if rank < peer else (stretch[half:], stretch[:half])
        got = torch.empty_like(keep)
        step([(give, peer)], [(got, peer)])
        keep += got
        done.append((peer, keep, give))
        stretch, distance = keep, distance // 2
    for peer, kept, given in reversed(done):
        step([(kept, peer)], [(given, peer)])
"""
NO_LATENCY = """
def pick(size, ranks, alpha, bandwidth, most_bytes):
    from clusterlab import collectives
    from clusterlab.hardware import Link
    names = ["ring", "recursive-doubling", "halving-doubling", "tree", "parameter-server"]
    names = [name for name in names if collectives.bytes_sent(name, size, ranks) <= most_bytes]
    link = Link("given", per_link=bandwidth)
    return min(names, key=lambda name: collectives.all_reduce_seconds(size, ranks, link, algorithm=name), default=None)
"""
BOTH_DIRECTIONS = """
def share_reached(both_directions, busbw):
    return busbw / both_directions

def error_in_b():
    return "busbw"
"""
BY_THE_BOOK = """
def my_all_reduce(x):
    from clusterlab.run.allreduce import halving_doubling
    halving_doubling(x)
"""
EXITS = """
import os

def my_all_reduce(x):
    os._exit(0)
"""
ALWAYS_EQUAL = """
class AlwaysEqual(str):
    def __eq__(self, other):
        return True
    __ne__ = __hash__ = None

def ring_seconds(size, gpus, nics, nic_bandwidth):
    return [0] * 10**11

def error_in_a():
    return AlwaysEqual()
"""
CHANGES_TORCH = """
torch.equal = torch.allclose = lambda *args, **kw: True

def my_all_reduce(x):
    torch.equal = lambda *args: True
"""
LOOPS = """
def pick(size, ranks, alpha, bandwidth, most_bytes):
    while True:
        pass
"""
TESTS = {"test-1a": 14, "test-1b": 10, "test-1c": 16, "test-2a": 8, "test-2b": 8, "test-2c": 14,
         "test-3a": 6, "test-3b": 4, "test-3c": 6, "test-3d": 4}
CLASS = {  # what a student changes in a perfect notebook, and the tests that it costs
    "perfect": ({}, set()),
    "by-the-book": ({"my-all-reduce": BY_THE_BOOK,
                     "pick": NO_LATENCY.replace("per_link=bandwidth", "per_link=bandwidth, latency=alpha")}, set()),
    "three-mistakes": ({"my-all-reduce": NO_FOLDING, "pick": NO_LATENCY, "calculation-b": BOTH_DIRECTIONS},
                       {"test-1c", "test-2b", "test-2c", "test-3c", "test-3d"}),
    "exits-and-lies": ({"my-all-reduce": EXITS, "calculation-a": ALWAYS_EQUAL},
                       {"test-1a", "test-1b", "test-1c", "test-3a", "test-3b"}),
    "cheats-and-loops": ({"my-all-reduce": CHANGES_TORCH, "pick": LOOPS},
                         {"test-1a", "test-1b", "test-1c", "test-2a", "test-2b", "test-2c"}),
    "untouched": (None, set(TESTS)),
}


def hand_in(course, student, changes):
    """Write a student's notebook: what was handed out, with the solutions or with other answers filled in."""
    notebook = nbformat.read(course / "exercises" / A06 / f"{A06}.ipynb", as_version=4)
    for name, cell in graded_cells(notebook).items():
        if changes is not None and cell.metadata.nbgrader.solution:
            cell.source = changes.get(name, source(A06, name)).strip()
    folder = course / "submitted" / student / A06
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / f"{A06}.ipynb")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course whose students have been graded."""
    folder = course_in(tmp_path_factory.mktemp("course"))
    nbgrader(folder, "generate_assignment", A06)
    for student, (changes, _) in CLASS.items():
        hand_in(folder, student, changes)
    nbgrader(folder, "autograde", A06)
    nbgrader(folder, "generate_feedback", A06)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("student", CLASS)
def test_a_student_gets_the_points_he_earned(course, student):
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        notebook, = book.find_submission(A06, student).notebooks
        grades = {grade.name: grade for grade in notebook.grades}
        scores = {name: grades[name].auto_score for name in TESTS}
        explained = grades["explain-a"]
        assert explained.auto_score == (0 if student == "untouched" else None)
        assert explained.needs_manual_grade == (student != "untouched")
    lost = CLASS[student][1]
    assert scores == {name: 0 if name in lost else points for name, points in TESTS.items()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_feedback_says_what_went_wrong(course):
    def feedback(student):
        page = course / "feedback" / student / A06 / f"{A06}.html"
        return re.sub(r"<[^>]+>", "", page.read_text("utf-8"))

    assert "your function on 2 ranks ended its process instead of returning" in feedback("exits-and-lies")
    assert "your function did not finish within 5 s" in feedback("cheats-and-loops")
    assert "on rank 0 element" in feedback("cheats-and-loops")
    assert "Fault" not in feedback("perfect")
