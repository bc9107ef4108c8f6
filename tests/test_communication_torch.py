"""What a plan makes a rank send, against the collectives that torch really calls on two ranks."""

import pytest
from clusterlab.communication import demands
from clusterlab.memory import FP32
from clusterlab.plan import Plan
from clusterlab.run.parallel import SMALL, SMALL_EXPERTS, compare

BATCH, SEQ = 8, 16                                                       # of clusterlab.run.trainer.Task


@pytest.fixture(scope="module")
def two():
    """Every strategy on two ranks, as torch's dispatcher sees it; its last step, as the first ones also set things up."""
    names = ["ddp", "fsdp", "fsdp-keep", "tensor", "sequence", "1f1b", "interleaved", "context", "expert"]
    return dict(zip(names, compare(names, 2, steps=3), strict=True))


def told(name, two, **kw):
    """{operation: (calls, volume)} of our formula for one of those runs, in fp32."""
    keep = kw.pop("keep", False)
    fields = {"global_batch": BATCH, "micro_batch": BATCH, "seq": SEQ, "zero_stage": 0, "recompute": "none"} | kw
    found = {}
    for need in demands(SMALL_EXPERTS if name == "expert" else SMALL, Plan(**fields), recipe=FP32, keep=keep,
                        regather=False, number=4):
        calls, volume = found.get(need.operation, (0, 0))
        found[need.operation] = calls + need.calls, volume + need.volume
    return found, two[name]


@pytest.mark.parametrize("name, plan", [
    ("ddp", {"data": 2, "micro_batch": 4}),
    ("fsdp", {"data": 2, "micro_batch": 4, "zero_stage": 3}),
    ("fsdp-keep", {"data": 2, "micro_batch": 4, "zero_stage": 3, "keep": True}),
    ("tensor", {"tensor": 2, "sequence_parallel": False}),
    ("1f1b", {"pipeline": 2, "micro_batch": 2}),
    ("interleaved", {"pipeline": 2, "virtual": 2, "micro_batch": 2}),
])
def test_calls_and_bytes_are_those_of_torch(name, plan, two):
    formula, run = told(name, two, **plan)
    for operation, (calls, volume) in formula.items():
        assert run.sizes()[operation] == volume
        assert run.counts()[operation] == calls
    assert set(run.counts()) - set(formula) <= {"all-gather"}          # of the logits, in tensor parallelism only


def test_sequence_parallelism_splits_each_all_reduce(two):
    formula, run = told("sequence", two, tensor=2, sequence_parallel=True)
    logits = 4 * BATCH * SEQ * SMALL.vocab
    assert formula["reduce-scatter"] == (run.counts()["reduce-scatter"], run.sizes()["reduce-scatter"])
    assert formula["all-gather"] == (run.counts()["all-gather"] - 1, run.sizes()["all-gather"] - logits)


def test_context_gathers_keys_and_values_and_reduces_every_gradient(two):
    formula, run = told("context", two, context=2, sequence_parallel=False)
    assert formula["all-gather"] == (run.counts()["all-gather"], run.sizes()["all-gather"])
    assert formula["reduce-scatter"] == (run.counts()["reduce-scatter"], run.sizes()["reduce-scatter"])
    assert formula["all-reduce"][1] == run.sizes()["all-reduce"]


def test_experts_travel_four_times_a_layer_and_reduce_no_gradient(two):
    formula, run = told("expert", two, data=2, expert=2, micro_batch=4)
    large = [call.size for call in run.calls[0] if call.kind == "all-to-all" and call.size > 1000]   # not the counts
    assert formula["all-to-all"][0] == len(large)
    assert formula["all-to-all"][1] == pytest.approx(sum(large), rel=0.1)                # as the router happens to deal
    assert formula["all-reduce"][1] == run.sizes()["all-reduce"]
