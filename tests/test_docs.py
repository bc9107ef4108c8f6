"""What README and CONTRIBUTING promise is there: commands, files, versions."""

import re
import tomllib

import pytest
from conftest import ROOT
from packaging.requirements import Requirement

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("book/**/*.md")]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_exist(path):
    commands = re.findall(r"(?:`|^)make ([a-z]+)\b", path.read_text("utf-8"), re.MULTILINE)
    assert set(commands) <= TARGETS


@pytest.mark.parametrize("path", PAGES[:2], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text("utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_bare_make_says_what_each_target_does():
    explained = re.findall(r"^([a-z]+):.*  ## \S", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(explained) == TARGETS


def test_tested_versions_satisfy_the_floors():
    lines = [line for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)  # exact versions and nothing else
    assert not any("+" in version for version in pins.values())
    assert not any(name.startswith(("nvidia", "triton")) for name in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    for floor in map(Requirement, [*project["dependencies"], *(floor for extra in extras for floor in extra)]):
        if floor.name != project["name"]:
            assert floor.specifier.contains(pins[floor.name.lower()], prereleases=True), floor
