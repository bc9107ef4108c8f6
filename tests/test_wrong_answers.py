"""The tests of the assignments see plausible mistakes: one is put into a solution, and the tests listed for it fail."""

import contextlib
import io
import tomllib

import nbformat
import pytest
from conftest import ROOT

ANSWERS = tomllib.loads((ROOT / "tests" / "fixtures" / "wrong_answers.toml").read_text("utf-8"))["answer"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.usefixtures("nothing_left")]


def lost(answer):
    """The tests that fail up to the end of the problem in which the mistake is."""
    path = ROOT / "solutions" / answer["assignment"] / f"{answer['assignment']}.ipynb"
    cells = {cell.metadata.nbgrader.grade_id: cell.source for cell in nbformat.read(path, as_version=4).cells
             if cell.cell_type == "code"}
    assert cells[answer["cell"]].count(answer["was"]) == 1, "the mistake does not fit the solution any more"
    cells[answer["cell"]] = cells[answer["cell"]].replace(answer["was"], answer["becomes"])
    order = list(cells)
    first = next(name for name in order[order.index(answer["cell"]):] if name.startswith("test-"))
    last = max(order.index(name) for name in order if name.startswith(first[:-1]))  # test-2a … test-2c
    names, failed = {}, []
    for name in order[:last + 1]:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(cells[name], name, "exec"), names)  # noqa: S102 (our own notebook)
        except AssertionError:
            failed.append(name)
    return failed


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer['assignment'][:2]} {answer['mistake']}")
def test_a_mistake_costs_its_points(answer):
    assert answer["loses"], "a mistake that costs nothing is none"
    assert lost(answer) == answer["loses"]


def test_every_assignment_has_wrong_answers():
    known = {answer["assignment"] for answer in ANSWERS} | {"06_allreduce"}  # 06 has a whole class of its own
    assert {path.name for path in (ROOT / "solutions").iterdir() if path.is_dir() and path.name[0] != "."} == known
