"""Every published value is reproduced within its printing precision, or the difference is explained."""

import json
import subprocess
import sys

import published
import pytest

REASONS = published.load()


@pytest.mark.parametrize("id", sorted(published.rows()))
def test_published_value(id):
    if id in REASONS:
        assert id not in published.REGISTRY, "reproduced, and yet listed as no formula"
        assert len(REASONS[id]) > 15, "say why there is no formula behind it"
        return
    ways = published.REGISTRY.get(id, [])
    assert ways, "neither reproduced nor listed in NOT_A_FORMULA with a reason"
    for result in (result for way in ways for result in published.compare(way)):
        assert result.holds, f"{id} {result.part}: published {result.published}, ours {result.ours}"
        if abs(result.ours - result.published) > result.printed:
            assert len(result.note) > 20, f"{id} {result.part} differs by more than it was printed to: say why in note"


def test_reasons_name_rows_that_exist():
    assert set(REASONS) <= set(published.rows())


def test_fixtures_have_unique_ids_and_a_source():
    for name in ("published.json", "peers.json"):
        table = json.loads((published.HERE / "fixtures" / name).read_text())
        assert len({row["id"] for row in table}) == len(table)
        assert all(row.get("source") or row.get("how_run") for row in table)


def test_the_validation_page_is_what_the_registry_says():
    run = subprocess.run([sys.executable, "tools/validation.py", "--check"], capture_output=True, text=True, check=False,
                         cwd=published.HERE.parent)
    assert run.returncode == 0, run.stderr
