"""What operators print of their networks is what the wiring gives, and says where it is printed."""

import json
import re

import pytest
from clusterlab import numbers
from clusterlab.operators import operators
from conftest import ROOT

ROWS = operators()
STORED = {row["id"]: row["value"] for row in json.loads((ROOT / "tests" / "fixtures" / "published.json").read_text("utf-8"))}


@pytest.mark.parametrize("name", ROWS)
def test_the_wiring_gives_what_is_printed(name):
    row = ROWS[name]
    value, half = numbers.parse(f"{row.printed:,}")
    assert row.ours() == pytest.approx(value, abs=half, rel=0)
    assert re.search(r"https://\S+$", row.source)
    assert "(" in row.expression and len(row.says) <= 27


@pytest.mark.parametrize("name, id, place", [
    ("superpod-gpus", "topo.superpod.su4", 1), ("meta-pod", "topo.meta24k", 0), ("meta-cluster", "topo.meta24k", 1),
    ("hpn-leaf", "topo.hpn", 0), ("hpn-pod", "topo.hpn", 2), ("deepseek-planes", "topo.ds.mpft", 0),
    ("deepseek-switches", "topo.ds.mpft", 1), ("tpu-v4-switches", "topo.mem.tpuocs", 2),
])
def test_printed_numbers_are_those_of_the_published_table(name, id, place):
    assert ROWS[name].printed == STORED[id][place]


def test_superpod_switches_are_its_leaves_and_spines():
    assert ROWS["superpod-switches"].printed == sum(STORED["topo.superpod.su4"][2:])
