"""The common mistakes: the right value from plain arithmetic, the tempting one offered and called wrong, the guard real.

A row of the table below is one public thread: the question, what is right, and the wrong value that was published.
"""

import json
import re
from itertools import pairwise

import pytest
from clusterlab import collectives, compute, hardware, memory, numbers, pipeline, reliability, topology
from clusterlab.plan import Plan
from clusterlab.transformer import Transformer, model
from clusterlab.widgets import questions
from conftest import ROOT
from test_notebooks import BROKEN, unsealed_forecasts

NVLINK_4, NVLINK_5, PCIE_5 = 18 * 25e9, 18 * 50e9, 16 * 32e9 * 128 / 130 / 8
# question: (right, tempting), both worked out without the library
VALUES = {
    "nvlink-ethernet": (NVLINK_4 / 50e9, 900 / 50),
    "nvlink-5": (NVLINK_5, 1.8e9),
    "nvlink-pcie": (NVLINK_4 / PCIE_5, 900 / 64),
    "sub-link": (25e9, 50e9),
    "a100-ceiling": (12 * 20e9, 600e9),
    "sparse-peak": (420 / 989.4, 420 / 1979),
    "above-one": (1.04 * 312 / 989.4, 1.04),
    "sixteen-gpus": (6 * 70e9 * 2048 * 16 * 500 / (13.5 * 3600) / (16 * 312e12),
                     6 * 70e9 * 2048 * 16 * 500 / (13.5 * 3600) / 312e12),
    "halved-twice": (312e12, 156e12),
    "attention-factor": (3 * (2 + 2), 60),
    "bytes-a-parameter": (2 + 4 + 4 + 8, 16),
    "zero-2": (7.5e9 * (2 + (2 + 4 + 8) / 64), 4 * 7.5e9 + 16 * 7.5e9 / 64),
    "undivided-gradients": (2 * 7e9 / 8, 2 * 7e9),
    "two-norms": (2 * 2 * 12288, 2 * 12288),
    "above-the-link": (480e9 * (9 / 8) / (14 / 8), 480e9),
    "algbw-busbw": (1e9 / 5e-3 * 14 / 8, 1e9 / 5e-3),
    "ring-latency": (2 * 63, 6),
    "one-nic": (2 * 63 / 64 * 280e9 / 400e9, 11.025),
    "spines": (512 / 64, 56),
    "larger-micro-batches": (7 / 32, 7 / 64 / 2),
    "same-bubble": (7 / 39, 7 / 39 / 2),
    "daly": (59.33 * 60, 67.33 * 60),
    "table-5": (148 / 419, 0.301),
}
WORDS = {"own-ring", "eight-ranks", "elastic", "bitwise", "notebook-spawn", "blank-widgets", "pins", "drift", "spoiled"}


def close(a, b):
    return abs(a - b) <= 2e-4 * abs(b)


def offered(name):
    """{value: whether it is right} of one question, computed by the library as the page computes it."""
    table = questions.load("mistakes")[name]
    names = questions._given(table.get("given", {}))
    return {float(questions.evaluate(choice["value"], **names)): built["right"] for choice, built in
            zip(table["choices"], questions.build(f"mistakes/{name}")["choices"], strict=True)}


def wrong(values, right, tempting):
    """What is wrong with a question's choices, as a list of sentences."""
    found = [] if [v for v, good in values.items() if good and close(v, right)] else [f"{right} is not the right choice"]
    return found + ([] if [v for v, good in values.items() if not good and close(v, tempting)] else
                    [f"the wrong {tempting} is not offered as wrong"])


def test_all_32_are_asked():
    assert set(VALUES) | WORDS == set(questions.load("mistakes")) and len(VALUES) + len(WORDS) == 32
    assert questions.check("mistakes") == []


@pytest.mark.parametrize("name", VALUES)
def test_right_values(name):
    assert wrong(offered(name), *VALUES[name]) == []


@pytest.mark.parametrize("name", VALUES)
def test_another_right_value_would_be_noticed(name):
    right, tempting = VALUES[name]
    assert wrong(offered(name), right * 1.01, tempting) and wrong(offered(name), tempting, right)


def test_daly_is_the_closed_form():
    write, mtbf = 4.0, 480.0
    ratio = write / (2 * mtbf)
    work = (2 * write * mtbf) ** 0.5 * (1 + ratio**0.5 / 3 + ratio / 9) - write
    assert work == pytest.approx(59.33, abs=0.005) and work + 2 * write == pytest.approx(67.33, abs=0.005)


def test_eight_ranks_follow_their_nics():
    """Of the measured 363 to 173 ms, the bytes of one NIC explain a factor of 2.33."""
    assert questions.build("mistakes/eight-ranks")["choices"][0]["why"].count("2.33") == 1
    assert (2 * 7 / 8) / (2 * 3 / 4 / 2) == pytest.approx(7 / 3) and 363 / 173 == pytest.approx(2.10, abs=0.005)


A100, H100 = hardware.accelerator("A100 SXM 80GB"), hardware.accelerator("H100 SXM")
PART = {"tokens_per_second": 25_000.0, "seq": 2048}      # 7B at 1.04 of an A100's peak


@pytest.mark.parametrize("mistake, words", [
    (lambda: hardware.link("NVLink"), "could be"),
    (lambda: hardware.accelerator("H100"), "PCIe"),
    (lambda: compute.mfu(model("llama-2-7b"), peak_flops=A100.dense_flops["bf16"], **PART), "above 1"),
    (lambda: compute.mfu(model("llama-2-7b"), peak_flops=H100.dense_flops["bf16"] / 4, **PART), "above 1"),
    (lambda: A100.dense_flops["fp8"], "no published dense peak"),
    (lambda: memory.Recipe(2, 2, -4, 8), "master"),
    (lambda: memory.model_state_bytes(7e9, zero_stage=4), "zero_stage"),
    (lambda: Transformer(layers=2, hidden=64, heads=4, vocab=99, gated=True), "ffn"),
    (lambda: collectives.steps("rings", 8), "ring"),
    (lambda: topology.rail_optimized(servers=63), "servers"),
    (lambda: topology.clos((56, 64), (1, 56), radix=64), "56 ports down and 56 up"),
    (lambda: pipeline.simulate("1f1b", stages=8, micro_batches=0, forward=1, backward=1), "micro_batches"),
    (lambda: Plan(tensor=5, global_batch=8, seq=60).check(model("gpt-3-175b")), "heads not divisible by tensor"),
    (lambda: reliability.daly_interval(-4.0, 480.0), "write"),
])
def test_what_must_be_an_error_is_one(mistake, words):
    with pytest.raises((ValueError, LookupError), match=words):
        mistake()


def test_a_drifted_number_is_noticed(monkeypatch):
    entry = numbers.number("ring-70b-8")
    monkeypatch.setattr(numbers, "registry", lambda: {"x": numbers.Number(
        "x", entry.says, "545 ms", entry.expression)})
    with pytest.raises(AssertionError, match="545 ms"):
        numbers.check("x")


def test_a_spoiled_forecast_is_noticed():
    check, notebook = BROKEN["the answer in an output"]
    assert check is unsealed_forecasts and check(notebook)


@pytest.fixture(scope="module")
def cells():
    return json.loads((ROOT / "book/reference/mistakes.ipynb").read_text("utf-8"))["cells"]


def test_the_page_asks_each_and_says_where_it_happened_and_what_catches_it(cells):
    asked = []
    for cell, after in pairwise(cells):
        key = re.fullmatch(r'quiz\("mistakes/([a-z0-9-]+)"\)', "".join(cell["source"]))
        if not key:
            continue
        asked.append(key[1])
        told = "".join(after["source"])
        assert told.startswith(f"```{{dropdown}} {len(asked)} · "), key[1]
        assert "](https://" in told or key[1] == "one-nic", f"{key[1]}: no address"
        file, _, name = re.search(r"Test: `(tests/test_\w+\.py)((?:::)?)(\w*)`", told).groups()
        assert (ROOT / file).exists(), f"{key[1]}: no {file}"
        assert not name or f"def {name}(" in (ROOT / file).read_text("utf-8"), f"{key[1]}: no {name} in {file}"
        assert "".join(cell["outputs"][0]["data"]["text/html"]).count("<details>") >= 3, "nothing to read without a kernel"
    assert asked == list(questions.load("mistakes"))
