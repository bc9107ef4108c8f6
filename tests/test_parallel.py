"""Every parallelism trains the same model: against a plain loop, byte counts by hand, and torch's flight recorder."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from clusterlab.memory import FP32, model_state_bytes
from clusterlab.pipeline import simulate
from clusterlab.run import launch
from clusterlab.run.model import Decoder
from clusterlab.run.parallel import (
    MISTAKES,
    SMALL,
    SMALL_EXPERTS,
    STRATEGIES,
    collect,
    compare,
    rank_work,
    strategies,
    train,
)
from clusterlab.run.pipeline_parallel import SCHEDULES, sleeping
from clusterlab.run.traffic import Traffic
from clusterlab.run.trainer import Task, work
from clusterlab.transformer import Transformer, model, models

P, LAYERS, BATCH, SEQ, H = SMALL.parameters(), SMALL.layers, 8, 16, SMALL.hidden
STREAM = 4 * BATCH * SEQ * H                                       # bytes of the residual stream of the global batch
DATA = ["ddp", "zero1", "fsdp", "fsdp-keep"]
EPSILON = torch.finfo(torch.float32).eps


@pytest.fixture(scope="module")
def two():
    """Every strategy that runs on two ranks, in one launch."""
    names = [name for name in strategies() if name not in ("hsdp", "tensor-fsdp")]
    return dict(zip(names, compare(names, 2), strict=True))


TIED = replace(SMALL, tied=True)
SIX_HEADS = replace(SMALL, heads=6, kv_heads=3, head_dim=8)
UNEVEN = Transformer(layers=3, hidden=42, heads=3, head_dim=10, vocab=97, ffn=70, gated=True)


def runs(ranks, jobs):
    """Many strategies with a task each, in one launch: {key: result} for jobs {key: (strategy, task)}."""
    answers = launch(rank_work, ranks, list(jobs.values()), timeout=60)
    return {key: collect(*job, of_ranks) for (key, job), *of_ranks in zip(jobs.items(), *answers, strict=True)}


@pytest.fixture(scope="module")
def two_special():
    batch5, tied = Task(SMALL, batch=5), Task(TIED)
    jobs = {f"{name} batch 5": (name, batch5) for name in ("ddp", "fsdp")}
    jobs |= {f"{name} equal weights": (name, replace(batch5, mistake="equal-weights")) for name in ("ddp", "fsdp")}
    jobs["ddp equal shares"] = "ddp", Task(SMALL, mistake="equal-weights")
    jobs |= {f"{name} tied": (name, tied) for name in ("ddp", "fsdp", "tensor", "1f1b", "interleaved", "zb-v")}
    jobs |= {f"{name} untied": (name, replace(tied, mistake="untied")) for name in ("tensor", "1f1b")}
    jobs["context wrong"] = "context", Task(SMALL, mistake="local-positions")
    jobs["expert wrong"] = "expert", Task(SMALL_EXPERTS, mistake="sum-experts")
    return runs(2, jobs)


@pytest.fixture(scope="module")
def three():
    jobs = {name: (name, Task(SMALL, seq=18)) for name in (*DATA, "gpipe", "1f1b", "zb-h1", "context")}
    jobs |= {name: (name, Task(SIX_HEADS, seq=18)) for name in ("tensor", "sequence")}
    return runs(3, jobs | {"expert": ("expert", Task(replace(SMALL_EXPERTS, experts=6)))})


@pytest.fixture(scope="module")
def four():
    jobs = {name: (name, Task(SMALL)) for name in ("hsdp", "tensor-fsdp")}
    jobs |= {mistake: ("tensor-fsdp", Task(SMALL, mistake=mistake)) for mistake in ("mesh-order", "data-by-rank")}
    return runs(4, jobs | {f"{name} uneven": (name, Task(UNEVEN)) for name in ("fsdp", "fsdp-keep")})


# the model


@pytest.mark.parametrize("name", ["gpt-2", "llama-3.1-8b", "mixtral-8x7b", "qwen-3-8b", "bloom-7b1", "qwen-2-7b"])
def test_model_has_the_parameters_of_its_shape(name):
    shape = replace(model(name), layers=2)
    with torch.device("meta"):
        assert sum(p.numel() for p in Decoder(shape).parameters()) == shape.parameters()


@pytest.mark.slow
def test_model_builds_every_shape_of_the_catalogue():
    for name in models():
        shape = replace(model(name), layers=1)
        with torch.device("meta"):
            assert sum(p.numel() for p in Decoder(shape).parameters()) == shape.parameters(), name


def test_attention_written_out_equals_fused_and_never_looks_ahead():
    tokens = torch.arange(12)[None] % SMALL.vocab
    torch.manual_seed(0)
    fused = Decoder(SMALL)
    torch.manual_seed(0)
    eager = Decoder(SMALL, attention="eager")
    assert torch.allclose(fused(tokens), eager(tokens), atol=1e-5)
    changed = tokens.clone()
    changed[0, 8] = 50
    for decoder in (fused, eager):
        same = (decoder(tokens) == decoder(changed)).all(-1)[0].tolist()
        assert same == [True] * 8 + [False] * 4


def test_attention_against_its_definition():
    """Softmax of q·k/√d over earlier positions, query head i reading key head i // group, written per position."""
    torch.manual_seed(0)
    attention = Decoder(replace(SMALL, positions=16), attention="eager").layers["0"].attention
    x, d, group = torch.randn(1, 5, H), SMALL.head_dim, SMALL.heads // SMALL.kv_heads
    q, k, v = (f(x)[0].unflatten(-1, (-1, d)) for f in (attention.q, attention.k, attention.v))
    out = torch.zeros(5, SMALL.heads, d)
    for i in range(5):
        for head in range(SMALL.heads):
            scores = torch.stack([q[i, head] @ k[j, head // group] / math.sqrt(d) for j in range(i + 1)]).softmax(0)
            out[i, head] = sum(scores[j] * v[j, head // group] for j in range(i + 1))
    assert torch.allclose(attention(x)[0], attention.out(out.flatten(1)), atol=1e-6)


# the same training


def test_single_process_is_a_plain_training_loop(two):
    task = Task(SMALL)
    decoder, losses = task.model(), []
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=task.learning_rate)
    for step in range(task.steps):
        tokens, targets = task.data(step)
        loss = F.cross_entropy(decoder(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    for result in (two["ddp"], two["gpipe"], two["tensor"]):
        assert result.reference == pytest.approx(losses, rel=3e-7)
    assert len(set(losses)) == task.steps


@pytest.mark.parametrize("name", [*DATA, "single", *SCHEDULES])
def test_bitwise_the_same_losses(two, name):
    assert two[name].bitwise and two[name].deviation == 0


@pytest.mark.parametrize("name", ["tensor", "sequence", "context", "expert"])
def test_the_same_losses_within_one_rounding(two, name):
    assert two[name].deviation < EPSILON and two[name].why


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hsdp", "tensor-fsdp"])
def test_two_parallelisms_at_once(four, name):
    assert four[name].deviation < EPSILON


@pytest.mark.slow
def test_three_ranks(three):
    for name, result in three.items():
        assert result.deviation < EPSILON, name
        assert result.bitwise or name not in SCHEDULES, name
    assert three["ddp"].deviation > 0                                                  # a sum of three has an order


# bytes


@pytest.mark.parametrize("name, stage", [("ddp", 0), ("zero1", 1), ("fsdp", 3), ("fsdp-keep", 3)])
def test_bytes_of_model_states_are_the_formula(two, name, stage):
    states = model_state_bytes(P, recipe=FP32, zero_stage=stage, data_parallel=2)
    result = two[name]
    assert result.weights == [states.weights] * 2 and result.gradients == [states.gradients] * 2
    assert sum(result.optimizer) == 2 * states.optimizer
    # ZeroRedundancyOptimizer deals out whole parameters, so shares differ by less than the largest
    largest = max(p.numel() for p in Decoder(SMALL).parameters()) * 8
    assert max(result.optimizer) - states.optimizer < (largest if name == "zero1" else 1)


def test_bytes_of_slices_stages_and_experts(two):
    norms = (2 * LAYERS + 1) * H                                                   # replicated
    assert two["tensor"].weights == [4 * ((P - norms) // 2 + norms)] * 2 == two["sequence"].gradients
    assert two["tensor"].optimizer == [8 * ((P - norms) // 2 + norms)] * 2
    for name in SCHEDULES:
        assert sum(two[name].weights) == 4 * P and sum(two[name].optimizer) == 8 * P
    assert two["1f1b"].weights[1] - two["1f1b"].weights[0] == 4 * H                # the last norm; the ends are equal
    assert two["zb-v"].weights[0] > two["zb-v"].weights[1]                         # rank 0 holds both ends
    experts = SMALL_EXPERTS.layers * SMALL_EXPERTS.experts * 3 * H * SMALL_EXPERTS.ffn
    assert two["expert"].weights == [4 * (SMALL_EXPERTS.parameters() - experts // 2)] * 2


@pytest.mark.slow
def test_uneven_shards_are_padded(four):
    """Rows that four ranks do not divide: each allocates ⌈rows/4⌉ of every weight; the last one fills less."""
    weights = list(Decoder(UNEVEN).parameters())
    held = sum(-(-len(p) // 4) * p[0].numel() for p in weights)
    filled = [sum(len(p.split(-(-len(p) // 4))[rank]) * p[0].numel() for p in weights) for rank in range(4)]
    assert sum(filled) == UNEVEN.parameters() < 4 * held
    for result in (four["fsdp uneven"], four["fsdp-keep uneven"]):
        assert result.weights == [4 * held] * 4 and result.optimizer == [8 * n for n in filled]
        assert result.deviation < EPSILON


# traffic


def test_volumes_of_data_parallelism(two):
    """In units of the parameters, sent by each of n ranks: (n-1)/n each for gather and scatter, so DDP 2, FSDP 3."""
    unit = 4 * P / 2
    assert {name: two[name].sent() / unit for name in DATA} == {"ddp": 2, "zero1": 3, "fsdp": 3, "fsdp-keep": 2}
    assert two["fsdp"].sent() / two["ddp"].sent() == 1.5
    groups = LAYERS + 1
    assert two["fsdp"].counts() == {"all-gather": 2 * groups, "reduce-scatter": groups}
    assert two["fsdp-keep"].counts() == {"all-gather": groups, "reduce-scatter": groups}
    assert two["ddp"].sizes() == {"all-reduce": 4 * P}
    assert two["single"].counts() == {}


def test_tensor_parallelism_makes_four_all_reduces_a_layer(two):
    """And one for the embedding forward, one for the head backward; the only gather is that of the logits."""
    logits = 4 * BATCH * SEQ * SMALL.vocab
    assert two["tensor"].counts() == {"all-reduce": 4 * LAYERS + 2, "all-gather": 1}
    assert two["tensor"].sizes() == {"all-reduce": (4 * LAYERS + 2) * STREAM, "all-gather": logits}
    norms = 2 * LAYERS + 1
    assert two["sequence"].counts() == {"all-gather": 4 * LAYERS + 3, "reduce-scatter": 4 * LAYERS + 2,
                                        "all-reduce": norms}
    assert two["sequence"].sent() - two["tensor"].sent() == 4 * H * norms      # same bytes, and the norms' gradients


def test_pipelines_send_the_stream_once_each_way_over_each_cut(two):
    for name, cuts in (("gpipe", 1), ("1f1b", 1), ("zb-h1", 1), ("interleaved", 3), ("zb-v", 2)):
        sent = two[name].sent(0) + two[name].sent(1)
        assert sent == 2 * cuts * STREAM, name                                 # zb-v turns around inside the last rank
        assert sum(two[name].counts(r)["send"] for r in (0, 1)) == 2 * cuts * 4


def test_context_gathers_keys_and_values(two):
    stream = 2 * 4 * BATCH * SEQ * SMALL.kv_heads * SMALL.head_dim             # K and V of a layer
    sizes = two["context"].sizes()
    assert sizes["all-gather"] == sizes["reduce-scatter"] == LAYERS * stream
    assert sizes["all-reduce"] == 4 * P


def test_experts_exchange_tokens_four_times_a_layer(two):
    calls = [call for call in two["expert"].calls[0] if call.kind == "all-to-all"]
    layers, k = SMALL_EXPERTS.layers, SMALL_EXPERTS.experts_per_token
    assert len(calls) == 5 * layers
    received = [[c.size for c in of_rank if c.kind == "all-to-all"] for of_rank in two["expert"].calls]
    sent = 4 * BATCH * SEQ * k * H // 2                                        # rows a rank sends, forward
    assert all(size >= sent for sizes in received for size in sizes if size > 64)


@pytest.mark.slow
def test_hybrids_put_traffic_on_the_right_group(four):
    hsdp = four["hsdp"]
    assert hsdp.groups[1] == {"replica": (1, 3), "shard": (0, 1)}
    assert {c.ranks for c in hsdp.calls[1] if c.kind == "all-reduce"} == {(1, 3)}
    assert hsdp.sizes()["all-reduce"] == 4 * P // 2                            # across nodes: the shares only
    assert hsdp.sent(ranks_per_node=2) == 4 * P // 2


# what a rank holds in flight


@pytest.mark.parametrize("name", SCHEDULES)
def test_micro_batches_in_flight_equal_the_simulation(two, name):
    split = name.startswith("zb")
    model_run = simulate(name, stages=2, micro_batches=4, forward=1, backward=1 if split else 2,
                         weight_backward=1 if split else None, virtual=2 if name in ("interleaved", "zb-v") else 1)
    assert tuple(two[name].in_flight) == model_run.peak_in_flight


@pytest.mark.slow
def test_sleeping_pipelines_never_beat_the_simulation():
    """A busy machine only makes them slower; a schedule that overlapped what it may not would be faster."""
    for name in SCHEDULES:
        split, s = name.startswith("zb"), 0.02
        least = simulate(name, stages=3, micro_batches=6, forward=s, backward=s if split else 2 * s,
                         weight_backward=s if split else None, virtual=2 if name in ("interleaved", "zb-v") else 1)
        seconds = launch(sleeping, 3, name, 6, forward=s, backward=s, weight_backward=s)
        assert max(seconds) > 0.97 * least.makespan, name


# mistakes


@pytest.mark.slow
def test_uneven_last_batch(two_special):
    for name in ("ddp", "fsdp"):
        assert two_special[f"{name} batch 5"].bitwise and two_special[f"{name} equal weights"].deviation > 1e-5
    assert two_special["ddp equal shares"].deviation < EPSILON                         # shares of one size: no mistake


@pytest.mark.slow
def test_tied_weights(two_special):
    tied = {key.split()[0]: result for key, result in two_special.items() if key.endswith(" tied")}
    assert len(tied) == 6 and all(result.deviation < EPSILON for result in tied.values())
    assert sum(tied["1f1b"].weights) == 4 * (TIED.parameters() + TIED.vocab * H)       # the last rank has a copy
    assert tied["1f1b"].sizes()["all-reduce"] == 4 * TIED.vocab * H
    assert sum(tied["zb-v"].weights) == 4 * TIED.parameters()                          # both ends on rank 0
    for name in ("tensor", "1f1b"):
        assert two_special[f"{name} untied"].deviation > 1e-5


@pytest.mark.slow
def test_fsdp_refuses_to_tear_tied_weights_apart():
    with pytest.raises(RuntimeError, match="shared with a parameter already managed by another FSDP group"):
        train("fsdp", 2, shape=TIED, mistake="untied")


@pytest.mark.slow
def test_rank_order_on_the_mesh(four):
    right, wrong = four["tensor-fsdp"], four["mesh-order"]
    assert right.groups[0] == {"data": (0, 2), "tensor": (0, 1)} and wrong.groups[0]["tensor"] == (0, 2)
    assert wrong.deviation < EPSILON and wrong.sent() == right.sent()                  # as good a training
    tensor_bytes = sum(c.sent for c in right.calls[0] if c.ranks == (0, 1))
    data_bytes = sum(c.sent for c in right.calls[0] if c.ranks == (0, 2))
    assert right.sent(ranks_per_node=2) == data_bytes and wrong.sent(ranks_per_node=2) == tensor_bytes


@pytest.mark.slow
def test_other_mistakes_show_in_the_losses(two_special, four):
    for result in (two_special["context wrong"], two_special["expert wrong"], four["data-by-rank"]):
        assert result.deviation > 1e-5


def test_every_mistake_is_described():
    assert all(len(text) > 20 for text in MISTAKES.values())


# the counter


def recorded(names):
    """On a rank: for each strategy the collectives of a step, counted by us and by torch's flight recorder."""
    from torch._C._distributed_c10d import _dump_fr_trace_json

    def entries():
        return json.loads(_dump_fr_trace_json(True, False)).get("entries", [])

    results = {}
    for name in names:
        task = Task(SMALL, steps=2)
        trainer = STRATEGIES[name](task.model(), task)
        work(trainer, task)
        before = max((e["record_id"] for e in entries()), default=-1)
        calls = work(trainer, replace(task, steps=1)).calls[0]
        seen = [e for e in entries() if e["record_id"] > before]
        results[name] = ([c.kind for c in calls], [e["profiling_name"] for e in seen])
    return results, whole_arrays()


@pytest.fixture(scope="module")
def counted():
    return launch(recorded, 2, ["ddp", "zero1", "fsdp", "tensor"])


def test_counts_agree_with_the_flight_recorder(counted):
    on_gloo = {"reduce-scatter": "all-reduce"}                     # gloo makes the one out of the other
    for name, (ours, theirs) in counted[0][0].items():
        ours = [on_gloo.get(kind, kind).replace("-", "_") for kind in ours]
        assert len(ours) > 0 and all(any(kind in entry for kind in set(ours)) for entry in theirs), name
        assert {k: ours.count(k) for k in ours} == {k: sum(k in entry for entry in theirs) for k in ours}, name


def whole_arrays():
    import torch.distributed as dist
    x = torch.zeros(6)
    with Traffic() as traffic:
        dist.all_reduce(x)
        dist.all_gather([torch.zeros(6) for _ in range(2)], x)
        dist.reduce_scatter(torch.zeros(3), [torch.zeros(3), torch.zeros(3)])
        dist.all_to_all_single(torch.zeros(6), x)
        dist.broadcast(x, 0)
        dist.barrier()
        (dist.send if dist.get_rank() == 0 else dist.recv)(x, 1 - dist.get_rank())
        dist.all_reduce(x, group=dist.new_group([dist.get_rank()], use_local_synchronization=True))
    return [(call.kind, call.size, call.sent) for call in traffic.calls]


def test_sizes_are_of_the_whole_array(counted):
    common = [("all-reduce", 24, 24), ("all-gather", 48, 24), ("reduce-scatter", 24, 12), ("all-to-all", 24, 12),
              ("broadcast", 24, 12)]
    sender, receiver = (arrays for _, arrays in counted)
    assert sender == [*common, ("send", 24, 24)] and receiver == common


# bad input


@pytest.mark.parametrize("strategy, ranks, options, text", [
    ("tensor", 3, {}, "heads=4 is not divisible by tensor=3"),
    ("hsdp", 3, {}, "world_size=3 is not divisible by tensor=2"),
    ("interleaved", 4, {}, "layers=4: interleaved on 4 ranks cuts the model into 8 chunks"),
    ("1f1b", 2, {"batch": 6}, "batch=6 is not divisible by micro_batches=4"),
    ("context", 3, {}, "seq=16 is not divisible by world_size=3"),
    ("expert", 3, {}, "experts=4: a multiple of world_size=3"),
    ("ddp", 4, {"batch": 3}, "batch=3"),
])
def test_what_cannot_be_divided(strategy, ranks, options, text):
    with pytest.raises(ValueError, match=text):
        train(strategy, ranks, **options)


def test_unknown_names():
    with pytest.raises(LookupError, match="tensor"):
        train("tenser", 2)
    with pytest.raises(LookupError, match="untied"):
        train("ddp", 2, mistake="united")
    with pytest.raises(TypeError, match="batches"):
        train("ddp", 2, batches=3)
