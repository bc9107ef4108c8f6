"""Change the formulas one operation at a time and count how many changes their tests notice (an hour or more).

python tools/mutants.py [--children N] [NAME…]    all of MATH, or modules and functions (`collectives plan.Plan`)

mutmut writes the changed functions. The tests are collected once; each mutant is a fork of that process, in which the
tests that reach its function run until one fails: first those that noticed other changes of it, then the quickest.
A mutant that changes nothing anyone can see is listed, with the reason, in tests/equivalent_mutants.toml; the others
that survive are printed, and kept with the counts in _build/mutants-MODULE.log. Messages of errors, functions with a
decorator (properties, caches) and constants of a module are not changed.
"""

import argparse
import ast
import difflib
import gc
import importlib
import os
import pickle
import re
import resource
import shutil
import signal
import sys
import textwrap
import time
import tomllib
import warnings
from collections import defaultdict
from multiprocessing.sharedctypes import RawArray
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from _pytest.runner import runtestprotocol
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "_build" / "mutants"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.toml"
ELSEWHERE = re.compile(r"^(?:from|import) (?:prose|conftest|test_notebooks|clusterlab\.(?:run|widgets)"
                       r"|clusterlab import .*\b(?:run|widgets))\b", re.MULTILINE)  # tests of other rooms, of pages
UNRELATED = "test_the_validation_page_is_what_the_registry_says"  # runs a tool on pages that are not laid out
COPY = re.compile(r"__mutmut_(?:\d+|orig)")
MEMORY = 6 << 30     # bytes a mutant may hold
SIGNS = ("---", "+++")
BROKEN = 70          # exit status of a fork that did not get to an answer


def lay_out():
    """A tree with the formulas, their data and their tests."""
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.copytree(ROOT / "lib" / "clusterlab", WORK / "clusterlab",
                    ignore=shutil.ignore_patterns("run", "widgets", "__pycache__"))
    (WORK / "tests").mkdir()
    shutil.copytree(ROOT / "tests" / "fixtures", WORK / "tests" / "fixtures")
    for path in (ROOT / "tests").glob("*.py"):
        if path.name != "conftest.py" and not ELSEWHERE.search(path.read_text("utf-8")):
            shutil.copy(path, WORK / "tests")
    shutil.copy(ROOT / "pyproject.toml", WORK)


def place(module, mutant):
    """Where a mutant is, as a reader would write it: ``plan.Plan.check``."""
    return f"{module}.{COPY.sub('', mutant).removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"


def mutate(module):
    """Write the module with its changed functions beside the true ones: {mutant: (place, was, becomes)}."""
    path = WORK / "clusterlab" / f"{module}.py"
    made = mutate_file_contents(str(path), path.read_text("utf-8"))
    path.write_text(made.code, "utf-8")
    lines, spans = made.code.splitlines(), made.line_span_by_function_name

    def source(function):
        text = textwrap.dedent("\n".join(lines[spans[function].start - 1:spans[function].end]))
        return text.replace(function, place(module, function).rpartition(".")[2])

    mutants = {}
    for name in made.mutant_names:
        true, changed = source(COPY.sub("__mutmut_orig", name)), source(name)
        if ast.dump(ast.parse(true)) != ast.dump(ast.parse(changed)):  # 1e18 + 1 is 1e18
            lines_of = [[line.strip() for line in text.splitlines()] for text in (true, changed)]
            changes = [line for line in difflib.unified_diff(*lines_of, n=0, lineterm="") if line[:3] not in SIGNS]
            was, becomes = (" ".join(line[1:] for line in changes if line.startswith(sign)) for sign in "-+")
            mutants[name] = (place(module, name), was, becomes)
    return mutants


def forget():
    """Empty every cache of formulas and tests: what was kept before the change must not answer for it."""
    for module in list(sys.modules.values()):
        if (getattr(module, "__file__", None) or "").startswith(str(WORK)):
            for value in vars(module).values():
                if callable(getattr(value, "cache_clear", None)):
                    value.cache_clear()


def passes(item, following):
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


class Run:
    """A pytest plugin: instead of one run of the tests, one for each mutant."""

    def __init__(self, mutants, children):
        self.mutants, self.children, self.results, self.counts = mutants, children, {}, {}

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.name != UNRELATED]

    def pytest_runtestloop(self, session):
        if session.testsfailed:
            pytest.exit("the tests do not load", 1)
        begun = time.monotonic()
        seconds, reached = self.survey(session.items)
        print(f"{len(seconds)} tests in {time.monotonic() - begun:.0f} s", flush=True)
        noticed = RawArray("i", max(map(len, self.mutants.values())))  # the test that failed, told by each fork
        gc.freeze()  # the forks share what is there, as long as nobody counts it
        for module, made in self.mutants.items():
            begun, left, running, sharp = time.monotonic(), list(enumerate(made)), {}, defaultdict(set)
            while left or running:
                if left and len(running) < self.children:
                    slot, name = left.pop(0)
                    function = f"clusterlab.{module}.{COPY.sub('', name)}"
                    order = sorted(reached[function], key=lambda i, first=sharp[function]: (i not in first, seconds[i]))
                    noticed[slot] = -1
                    pid = self.fork(f"clusterlab.{module}.{name}", [(i, session.items[i], seconds[i]) for i in order],
                                    noticed, slot)
                    running[pid] = name, function, slot
                else:
                    pid, status = os.wait()
                    code = os.waitstatus_to_exitcode(status)
                    name, function, slot = running.pop(pid)
                    if code == BROKEN:
                        pytest.exit(f"no answer for {name}", 1)
                    self.results[module, name] = code
                    sharp[function] |= {noticed[slot]}
            self.report(module, time.monotonic() - begun)
        return True

    def survey(self, items):
        """Run every test once, unchanged: its seconds, and which tests reach each function."""
        read, write = os.pipe()
        if os.fork() == 0:
            found = []
            try:
                set_mutant_under_test("stats")
                for item, following in zip(items, [*items[1:], None]):
                    forget()
                    state()._stats.clear()
                    begun = time.process_time()
                    good = passes(item, following)
                    found.append((time.process_time() - begun, set(state()._stats)) if good else item.nodeid)
            finally:
                with os.fdopen(write, "wb") as stream:
                    pickle.dump(found, stream)
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            found = pickle.load(stream)
        os.wait()
        failed = [entry for entry in found if isinstance(entry, str)]
        if failed or len(found) < len(items):
            pytest.exit(f"the tests must pass before they are run against mutants: {failed}", 1)
        reached = defaultdict(set)
        for index, (_, functions) in enumerate(found):
            for function in functions:
                reached[function].add(index)
        return dict(enumerate(spent for spent, _ in found)), reached

    def fork(self, mutant, tests, noticed, slot):
        pid = os.fork()
        if pid:
            return pid
        code = BROKEN
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            set_mutant_under_test(mutant)
            forget()
            code = 0
            for (index, item, usual), following in zip(tests, [*(test[1] for test in tests[1:]), None]):
                signal.setitimer(signal.ITIMER_PROF, 1 + 5 * usual)  # ends a mutant that never does
                if not passes(item, following):
                    noticed[slot], code = index, 1
                    break
        finally:
            os._exit(code)

    def report(self, module, spent):
        made = self.mutants[module]
        alive = [change for name, change in made.items() if self.results[module, name] == 0]
        listed = equivalents() & set(made.values())
        opened = [change for change in alive if change not in listed]
        text = [f"{where}\n  - {was}\n  + {becomes}" for where, was, becomes in opened]
        text += [f"listed as equivalent, and noticed: {change}" for change in listed.difference(alive)]
        self.counts[module] = np.array([len(made), len(alive) - len(opened), len(opened)])
        text.append(f"{module}: {summary(self.counts[module])}; {spent:.0f} s")
        print(*text, sep="\n", flush=True)
        (WORK.parent / f"mutants-{module}.log").write_text("\n".join(text) + "\n", "utf-8")


def summary(counts):
    """All, equivalent and open mutants as one line."""
    made, equivalent, opened = counts
    others = made - equivalent
    return (f"{made} mutants, {equivalent} equivalent; of the others {others - opened} "
            f"({1 - opened / max(1, others):.1%}) noticed, {opened} open")


def equivalents():
    """The mutants listed as changing nothing, each under its reason: {(where, was, becomes)}."""
    groups = tomllib.loads(EQUIVALENT.read_text("utf-8"))["equivalent"] if EQUIVALENT.exists() else []
    return {(one["where"], one["was"], one["becomes"])
            for group in groups if group["reason"] for one in group["mutants"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--children", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("names", nargs="*", help="modules and functions; none: all of MATH")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork must not wait for threads that it does not have
    lay_out()
    os.chdir(WORK)
    sys.path.insert(0, str(WORK))
    modules = [name.partition(".")[0] for name in options.names] or \
        [path.stem for path in sorted((WORK / "clusterlab").glob("[!_]*.py"))]
    mutants = {}
    for module in dict.fromkeys(modules):
        made = mutate(module)
        mutants[module] = {name: change for name, change in made.items()
                           if not options.names or any(f"{change[0]}.".startswith(f"{n}.") for n in options.names)}
    for module in mutants:  # only now: one imports the other
        for value in vars(importlib.import_module(f"clusterlab.{module}")).values():
            if isinstance(value, dict) and value and "_mutmut_orig" in value:
                for name, function in value.items():
                    if name != "_mutmut_orig":
                        getattr(function, "__func__", function).__doc__ = None  # the true function's doctest is enough
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])  # a smaller counterexample tells nothing here
    hypothesis.settings.load_profile("mutants")
    run = Run(mutants, options.children)
    if pytest.main(["-qq", "-s", "--disable-warnings", "--rootdir", str(WORK), "tests", "clusterlab"], [run]):
        sys.exit(1)
    print(f"all: {summary(sum(run.counts.values()))}")


if __name__ == "__main__":
    main()
