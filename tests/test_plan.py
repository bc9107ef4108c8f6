"""Plans: what multiplies, what must divide, and that arrays say the same as single plans."""

import dataclasses
import itertools

import numpy as np
import pytest
from clusterlab.plan import Plan
from clusterlab.transformer import Transformer, model

GOOD = {"tensor": 4, "pipeline": 2, "data": 4, "context": 2, "expert": 2, "micro_batch": 2, "global_batch": 32,
        "seq": 64, "virtual": 2}
SHAPE = Transformer(layers=8, hidden=64, heads=16, kv_heads=4, ffn=96, gated=True, vocab=100, experts=4)


def test_products():
    plan = Plan(**GOOD)
    assert plan.devices == 4 * 2 * 4 * 2
    assert plan.micro_batches == 32 // (4 * 2)
    plan.check(SHAPE)


def test_defaults_are_one_device():
    plan = Plan(global_batch=8, seq=16)
    assert (plan.devices, plan.micro_batches, plan.recompute, plan.zero_stage) == (1, 8, "selective", 1)


@pytest.mark.parametrize("change, words", [
    ({"data": 3}, "global_batch.*data=3"), ({"micro_batch": 16}, "micro_batch=16"), ({"expert": 3}, "expert=3"),
    ({"seq": 60}, "seq=60"), ({"pipeline": 1, "virtual": 2}, "virtual=2"),
    ({"pipeline": 3, "global_batch": 32}, "micro-batches.*pipeline=3"),
    ({"tensor": 0}, "tensor"), ({"tensor": 1.5}, "tensor=1.5: a positive integer"), ({"pipeline": "2"}, "pipeline"),
    ({"recompute": "all"}, "selective"), ({"zero_stage": 4}, "zero_stage"), ({"micro_batch": -1}, "micro_batch"),
])
def test_an_illegal_plan_is_an_error(change, words):
    with pytest.raises(ValueError, match=words):
        Plan(**GOOD | change)


@pytest.mark.parametrize("change, words", [
    ({"pipeline": 8, "virtual": 1, "data": 1, "expert": 1, "layers": 12}, "layers.*pipeline=8.*layers=12"),
    ({"tensor": 32, "seq": 128}, "heads=16"), ({"tensor": 3, "seq": 96, "heads": 15, "kv_heads": 5}, "kv_heads"),
    ({"tensor": 16, "seq": 64, "ffn": 100}, "ffn=100"), ({"expert": 8}, "experts=4"),
])
def test_what_the_shape_does_not_allow(change, words):
    of_shape = {k: change[k] for k in change if k in ("layers", "heads", "kv_heads", "ffn")}
    of_plan = {k: change[k] for k in change if k not in of_shape}
    shape = dataclasses.replace(SHAPE, **of_shape, head_dim=4)
    plan = Plan(**GOOD | of_plan)
    with pytest.raises(ValueError, match=words):
        plan.check(shape)


def test_a_rule_broken_is_named_with_all_it_speaks_of():
    def said(shape=None, **fields):
        with pytest.raises(ValueError) as error:
            Plan(**GOOD | fields).check(shape)
        return str(error.value)

    assert said(data=3) == "global_batch not divisible by data × micro_batch: data=3, micro_batch=2, global_batch=32"
    assert said(expert=3) == "data × context not divisible by expert: data=4, context=2, expert=3"
    assert said(seq=60) == "seq not divisible by context × tensor: tensor=4, context=2, seq=60"
    assert said(pipeline=1) == "virtual > 1 without a pipeline: pipeline=1, virtual=2"
    assert said(pipeline=3) == "micro-batches not divisible by pipeline, interleaved: pipeline=3, micro_batch=2"
    odd = dataclasses.replace(SHAPE, heads=20, kv_heads=10, head_dim=4)
    assert said(odd) == "kv_heads and tensor do not divide: tensor=4, kv_heads=10"
    assert said(SHAPE, expert=8) == "experts not divisible by expert: expert=8, experts=4"


def test_without_sequence_parallelism_only_context_cuts_the_sequence():
    Plan(tensor=2, context=3, sequence_parallel=False, global_batch=1, seq=9)
    with pytest.raises(ValueError, match="seq=9"):
        Plan(tensor=2, context=3, global_batch=1, seq=9)


def test_more_tensor_ranks_than_key_heads_is_legal():
    Plan(tensor=16, global_batch=1, seq=16).check(model("llama-3.1-405b"))      # two ranks share a key head


def test_126_layers_on_16_stages():
    llama = model("llama-3.1-405b")
    with pytest.raises(ValueError, match="layers=126"):
        Plan(pipeline=16, global_batch=16, seq=8).check(llama)
    plan = Plan(pipeline=16, global_batch=16, seq=8, embedding_as_layers=True)
    plan.check(llama)
    held = [int(plan.layers(llama, stage)) for stage in range(16)]
    assert held == [7] + 14 * [8] + [7]


@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_stages_hold_all_layers(pipeline):
    plan = Plan(pipeline=pipeline, global_batch=4, seq=8)
    assert sum(int(plan.layers(SHAPE, stage)) for stage in range(pipeline)) == SHAPE.layers


def test_arrays_say_what_single_plans_say():
    options = {"tensor": (1, 3, 4), "pipeline": (1, 2, 3), "data": (1, 2), "expert": (1, 2, 8), "virtual": (1, 2),
               "sequence_parallel": (False, True)}
    rows = list(itertools.product(*options.values()))
    columns = dict(zip(options, map(np.array, zip(*rows, strict=True)), strict=True))
    many = Plan(**columns, global_batch=12, seq=16)
    legal = ~np.any(list(many.problems(SHAPE).values()), axis=0)
    assert many.shape == (len(rows),) and 0 < legal.sum() < len(rows)
    for row, good, devices in zip(rows, legal, many.devices, strict=True):
        try:
            plan = Plan(**dict(zip(options, row, strict=True)), global_batch=12, seq=16)
            plan.check(SHAPE)
        except ValueError:
            assert not good
        else:
            assert good and plan.devices == devices
    with pytest.raises(ValueError, match="divisible"):
        many.check(SHAPE)


def test_lists_are_arrays():
    assert Plan(tensor=[1, 2], data=(4, 4), global_batch=8, seq=16).devices.tolist() == [4, 8]
