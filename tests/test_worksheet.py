"""The worksheet: each line is the single call of the library that it names, and the arithmetic is done here by hand."""

import csv
import dataclasses
import io
import math

import pytest
from clusterlab import planning, reliability
from clusterlab.compute import training_flops
from clusterlab.hardware import Cluster, link, node
from clusterlab.memory import MIXED_18, PURE_16, device_memory
from clusterlab.training import estimate, search
from clusterlab.transformer import Transformer, model
from clusterlab.worksheet import RESERVE, networked, worksheet

JOB = {"tokens": 100e9, "devices": 32, "global_batch": 512, "seq": 8192}
P = 8_030_261_248                       # published


@pytest.fixture
def sheet():
    return worksheet("llama-3-8b", "DGX H100", **JOB, price=2.5, reached=0.5, pue=1.25, keep=3)


def fitting(cluster, **how):
    """The plans of a plain search that leave 4 GB free, fastest first, one of each set of degrees."""
    found, seen = search(model("llama-3-8b"), cluster, global_batch=512, seq=8192, overlap="data", **how), {}
    for plan, step in found:
        if step.memory.total <= cluster.accelerator.memory - 4e9:
            seen.setdefault((plan.tensor, plan.pipeline, plan.data, plan.context, plan.expert), (plan, step))
    return list(seen.values())


def test_the_plans_are_those_of_a_plain_search(sheet):
    expected = fitting(Cluster(node("DGX H100"), 4))[:3]
    assert [choice.plan for choice in sheet.choices] == [plan for plan, _ in expected]
    assert [choice.estimate.step_seconds for choice in sheet.choices] == [step.step_seconds for _, step in expected]


def test_each_plan_is_the_single_call(sheet):
    cluster = Cluster(node("DGX H100"), 4)
    for choice in sheet.choices:
        step = estimate(model("llama-3-8b"), cluster, choice.plan, overlap="data")
        memory = device_memory(model("llama-3-8b"), choice.plan, attention="flash", dropout=False)
        assert choice.estimate.memory == memory
        assert choice.step_seconds == pytest.approx(2 * step.step_seconds)
        assert choice.tokens_per_second == pytest.approx(512 * 8192 / (2 * step.step_seconds))
        assert choice.mfu == pytest.approx(step.mfu / 2)


def test_the_run_by_hand(sheet):
    best = sheet.choices[0]
    steps = 100e9 / (512 * 8192)
    assert best.steps == pytest.approx(steps)
    assert best.busy == pytest.approx(steps * best.step_seconds)
    assert sheet.checkpoint == 14 * P
    assert sheet.write == pytest.approx(14 * P / (4 * 2e9))                     # four nodes at 2 GB/s
    mtbf = 54 * 86400 * 16384 / 419 / 32                                        # Llama 3: 419 in 54 days of 16,384
    assert sheet.mtbf == pytest.approx(mtbf)
    assert sheet.interval == pytest.approx(math.sqrt(2 * sheet.write * mtbf), rel=2e-3)
    lost = sheet.write / sheet.interval + (sheet.interval / 2 + 600) / mtbf     # first order, restart of ten minutes
    assert sheet.goodput == pytest.approx(1 - lost, abs=5e-6)
    assert best.seconds == pytest.approx(best.busy / sheet.goodput)
    assert best.interruptions == pytest.approx(best.seconds / mtbf)
    assert best.device_hours == pytest.approx(32 * best.seconds / 3600)
    assert best.cost == pytest.approx(2.5 * best.device_hours)
    assert best.energy == pytest.approx(1.25 * 4 * 10_200 * best.seconds)       # a DGX H100 is rated 10.2 kW
    assert sheet.flops == pytest.approx(training_flops(model("llama-3-8b"), batch=1, seq=8192) * 100e9 / 8192)
    assert 1 < sheet.flops / (6 * P * 100e9) < 1.3                              # attention on top of six a parameter


def test_it_is_what_the_planner_says():
    roomy = planning.best(model("llama-3-8b"), Cluster(node("DGX H100"), 4), global_batch=512, seq=8192, keep=2)
    sheet = worksheet("llama-3-8b", "DGX H100", **JOB, price=2.0, reserve=0)
    run = roomy.run(100e9, 2.0)
    assert [choice.plan for choice in sheet.choices] == [one.plan for one in roomy.plans]
    best = sheet.choices[0]
    assert (best.seconds, best.device_hours, best.interruptions, best.energy, best.cost) == pytest.approx(run)
    assert (sheet.interval, sheet.goodput, sheet.binds) == (roomy.interval, roomy.goodput, roomy.binds())
    assert (sheet.legal, sheet.too_large, sheet.leanest) == (roomy.legal, roomy.too_large, roomy.leanest)


def test_counts_of_plans_and_the_reserve(sheet):
    capacity = node("DGX H100").accelerator.memory
    assert RESERVE == 4e9
    assert all(choice.estimate.memory.total <= capacity - 4e9 for choice in sheet.choices)
    free = worksheet("llama-3-8b", "DGX H100", **JOB, reserve=0)
    assert free.legal == sheet.legal and free.too_large < sheet.too_large
    assert free.choices[0].estimate.memory.total > capacity - 4e9               # which is what the reserve is against
    assert free.legal - free.too_large == len(search(model("llama-3-8b"), Cluster(node("DGX H100"), 4),
                                                     global_batch=512, seq=8192, overlap="data"))


def test_other_inputs_move_only_what_they_name():
    def sheet(**change):
        return worksheet("llama-3-8b", "DGX H100", **(JOB | change))
    plain = sheet()
    slow = sheet(storage=0.5e9)
    assert slow.write == pytest.approx(4 * plain.write) and slow.interval == pytest.approx(2 * plain.interval, rel=1e-2)
    assert slow.choices[0].busy == plain.choices[0].busy and slow.goodput < plain.goodput
    shared = worksheet("llama-3-8b", dataclasses.replace(node("DGX H100"), hosts=2), **JOB)    # two systems write, not one
    assert shared.write == pytest.approx(plain.write / 2)
    fragile = sheet(device_mtbf=1e6)
    assert fragile.mtbf == 1e6 / 32 and fragile.choices[0].interruptions == pytest.approx(
        fragile.choices[0].seconds * 32 / 1e6)
    late = sheet(restart=86400.0)
    assert late.interval == plain.interval and late.goodput == pytest.approx(
        reliability.goodput(plain.interval, write=plain.write, mtbf=plain.mtbf, restart=86400.0))
    assert sheet(price=0.0).choices[0].cost == 0.0 and plain.choices[0].cost is None
    assert sheet(tokens=200e9).choices[0].seconds == pytest.approx(2 * plain.choices[0].seconds)
    assert sheet(recipe=MIXED_18).checkpoint == 14 * P                          # fp32 gradients are not saved
    assert sheet(recipe=PURE_16).checkpoint == 6 * P                            # no masters, moments in 16 bits
    assert sheet(price=3.5).price == 3.5 and plain.price is None
    assert sheet(tensor=2).choices[0].plan.tensor == 2
    full = sheet(oversubscription=64.0)
    assert full.choices[0].step_seconds > plain.choices[0].step_seconds and full.cluster.oversubscription == 64.0


def test_an_own_model_and_node():
    own = Transformer(layers=4, hidden=512, heads=8, vocab=1024)
    sheet = worksheet(own, networked("DGX H100", "Ethernet 100G", 1), tokens=1e9, devices=16, global_batch=64, seq=1024)
    assert sheet.model == "own model" and sheet.cluster.nodes == 2
    assert sheet.cluster.node.network_bandwidth == 12.5e9                       # 100 Gbit/s
    assert networked(node("DGX A100"), link("InfiniBand NDR"), 2).network_bandwidth == 100e9
    assert networked("DGX A100", "InfiniBand NDR", 2).power == node("DGX A100").power


def test_nothing_fits():
    sheet = worksheet("llama-3.1-405b", "DGX H100", tokens=1e9, devices=8, global_batch=8, seq=8192)
    assert sheet.choices == () and sheet.binds == "" and sheet.legal == sheet.too_large > 0
    assert sheet.leanest > node("DGX H100").accelerator.memory
    assert "no plan fits" in sheet.markdown() and sheet.csv().startswith("line,unit\n")


def test_a_node_without_published_power():
    sheet = worksheet("llama-3-8b", "MI300X Platform", **JOB)
    assert sheet.choices[0].energy is None
    line = next(one for one in sheet.lines() if one.name == "energy")
    assert line.values == (None, None) and line.shown == ("-", "-")


@pytest.mark.parametrize("change, words", [
    ({"devices": 12}, "devices=12"), ({"devices": 0}, "devices=0"), ({"tokens": 0}, "tokens=0"),
    ({"reached": 0}, "reached=0"), ({"reached": 1.01}, "reached=1.01"), ({"storage": 0}, "storage=0"),
    ({"reserve": -1}, "reserve=-1"), ({"reserve": 90e9}, "reserve="),
    ({"reserve": 81_559 * 2**20}, "reserve="), ({"pue": 0.9}, "pue=0.9"),
    ({"price": -1}, "price=-1"), ({"keep": 0}, "keep=0"), ({"tensors": 2}, "tensors"),
])
def test_what_cannot_be_is_named(change, words):
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        worksheet("llama-3-8b", "DGX H100", **(JOB | change))


def test_one_device_is_a_whole_node_of_one():
    alone = dataclasses.replace(node("DGX H100"), devices=1, nics=1)
    sheet = worksheet(Transformer(layers=2, hidden=256, heads=4, vocab=512), alone, tokens=1, devices=1, global_batch=1,
                      seq=1024, storage=1, reserve=0)
    assert sheet.cluster.devices == 1 and sheet.choices[0].steps == 1 / 1024 and sheet.write == sheet.checkpoint


def test_borders_are_allowed():
    assert worksheet("llama-3-8b", "DGX H100", **JOB, reached=1, pue=1, price=0, reserve=0).choices


NAMES = ["tokens", "FLOP", "weights", "gradients", "optimizer", "activations", "logits", "buffers", "total", "tensor",
         "pipeline", "context", "expert", "data", "micro-batch", "recompute", "ZeRO stage", "step", "tokens/s", "MFU",
         "binds", "checkpoint", "its write", "save every", "interruptions", "goodput", "time", "GPU-hours", "energy",
         "cost"]


def test_lines_carry_values_and_words(sheet):
    lines = {line.name: line for line in sheet.lines()}
    assert list(lines) == NAMES
    best, memory = sheet.choices[0], sheet.choices[0].estimate.memory
    expected = {"tokens": 100e9, "FLOP": sheet.flops, "total": memory.total, "weights": memory.weights,
                "activations": memory.activations, "data": best.plan.data, "recompute": best.plan.recompute,
                "ZeRO stage": best.plan.zero_stage, "micro-batch": best.plan.micro_batch, "step": best.step_seconds,
                "tokens/s": best.tokens_per_second, "MFU": best.mfu, "binds": sheet.binds, "its write": sheet.write,
                "save every": sheet.interval, "checkpoint": sheet.checkpoint, "interruptions": best.interruptions,
                "goodput": sheet.goodput, "time": best.seconds, "GPU-hours": best.device_hours, "energy": best.energy,
                "cost": best.cost}
    assert {name: lines[name].values[0] for name in expected} == expected
    assert sum(lines[part].values[1] for part in NAMES[2:8]) == pytest.approx(lines["total"].values[1])
    assert all(len(line.values) == len(line.shown) == 3 for line in lines.values())


def test_words_of_a_line_are_the_value_in_its_unit(sheet):
    lines = {line.name: line for line in sheet.lines()}
    days = sheet.choices[0].seconds / 86400
    assert lines["time"].shown[0] == f"{days:.3g} days"
    assert lines["energy"].shown[0] == f"{sheet.choices[0].energy / 3.6e9:.3g} MWh"
    assert lines["GPU-hours"].shown[0] == f"{32 * 24 * days:,.0f}"
    assert lines["cost"].shown[0] == f"{2.5 * 32 * 24 * days:,.0f}"
    assert lines["tokens"].shown[0] == "100 B" and lines["checkpoint"].shown[0] == "112 GB"
    assert lines["MFU"].shown[0] == f"{100 * sheet.choices[0].mfu:.1f}%"
    assert lines["goodput"].shown[0] == f"{100 * sheet.goodput:.2f}%"
    assert lines["tensor"].shown[0] == str(sheet.choices[0].plan.tensor)


def test_markdown_is_a_table_that_also_reads_as_text(sheet):
    head, table = sheet.markdown().split("\n\n")
    assert head.splitlines() == ["llama-3-8b on 4 × DGX H100", "network ports a node: 8 × InfiniBand NDR",
                                 "batch 512 × 8,192 tokens",
                                 f"{sheet.legal:,} legal plans, {sheet.too_large:,} do not fit"]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert rows[0] == ["", "plan 1", "plan 2", "plan 3"]
    assert rows[1][0].startswith("---") and all(cell.endswith("-:") for cell in rows[1][1:])
    assert [row[0] for row in rows[2:]] == NAMES
    assert {tuple(row[1:]) for row in rows[2:]} == {line.shown for line in sheet.lines()}
    assert len({len(line) for line in table.splitlines()}) == 1
    two = sheet.markdown(keep=2)
    assert "plan 3" not in two and max(map(len, two.splitlines())) <= 44          # it is read on phones


def test_a_machine_without_a_network_says_so():
    alone = dataclasses.replace(node("DGX H100"), nic=None, nics=0)
    assert "network ports a node: none" in worksheet(
        "llama-3-8b", alone, tokens=1e9, devices=8, global_batch=64, seq=8192).markdown()


def test_csv_comes_back_as_the_same_numbers(sheet):
    rows = list(csv.reader(io.StringIO(sheet.csv())))
    assert rows[0] == ["line", "unit", "plan 1", "plan 2", "plan 3"]
    lines = sheet.lines()
    assert [row[:2] for row in rows[1:]] == [[line.name, line.unit] for line in lines]
    for row, line in zip(rows[1:], lines, strict=True):
        for text, value in zip(row[2:], line.values, strict=True):
            assert text == value if isinstance(value, str) else float(text) == value
    unknown = worksheet("llama-3-8b", "MI300X Platform", **JOB).csv()
    assert "\nenergy,J,,\n" in unknown and "\ncost,,,\n" in unknown
