"""Step times that the model predicts, beside published ones. Two are calibrated, and named so."""

import functools

from clusterlab.hardware import Cluster, node
from clusterlab.kernels import Device
from clusterlab.layertime import layer_seconds
from clusterlab.memory import MIXED_16, MIXED_18
from clusterlab.plan import Plan
from clusterlab.training import estimate, search
from clusterlab.transformer import Transformer, model
from clusterlab.units import PFLOP, TFLOP, ms
from published import ids, reproduces

A100 = node("DGX A100")          # Selene, and near enough to MegaScale's Ampere nodes with 8 NICs of 200 Gbit/s
KORTHIKANTI = "predicted with the constants calibrated on the 175B model alone"
VIRTUAL = {"175B": 3, "530B": 3}  # section 6: the interleaved schedule with 3 chunks for 175B and 530B


def gpt(given):
    """The shape a row of inputs describes."""
    return Transformer(layers=given["layers"], hidden=given["hidden"], heads=given["heads"], vocab=given["vocab"],
                       positions=given["seq"], tied=True, bias=True, norm="layer")


# Korthikanti et al. 2022

def korthikanti(given, recompute, virtual=1, data=1, constants=None):
    """Full recomputation is their baseline without sequence parallelism, selective their proposal with it."""
    plan = Plan(tensor=given["tp"], pipeline=given["pp"], data=data, virtual=virtual, recompute=recompute,
                micro_batch=given["micro_batch"], global_batch=given["global_batch"] * data, seq=given["seq"],
                sequence_parallel=recompute == "selective", zero_stage=0)
    return estimate(gpt(given), Cluster(A100, plan.devices // A100.devices), plan, constants=constants)


def korthikanti_steps(row):
    virtual = VIRTUAL.get(row["id"].rsplit(".")[-1], 1)
    return [korthikanti(row["inputs"], recompute, virtual).step_seconds for recompute in ("full", "selective")]


@reproduces("flops.kort.table5.175B", kind="calibrated", rel=0.01,
            note="one constant, the matmul share, is fitted to these two times; what remains is the form of the model")
@reproduces("flops.kort.table5.22B", "flops.kort.table5.1T", rel=0.06, note=KORTHIKANTI)
def korthikanti_step_times(row):
    return dict(zip(("t_full_s", "t_present_s"), korthikanti_steps(row), strict=True))


@reproduces(*ids(r"flops\.kort\.table5"), abs=4.0, note="the gain in points, from two predicted times")
def korthikanti_gain(row):
    full, selective = korthikanti_steps(row)
    return {"gain_pct": 100 * (full / selective - 1)}


KORTHIKANTI_530B = {"heads": 128, "hidden": 20480, "layers": 105, "tp": 8, "pp": 35, "global_batch": 280,
                    "micro_batch": 1, "seq": 2048, "vocab": 51200}


@reproduces("flops.kort.dp8", rel=0.06, note=KORTHIKANTI + ", and data parallelism in the open")
def korthikanti_530b_on_2240(row):
    return 100 * korthikanti(KORTHIKANTI_530B, "selective", VIRTUAL["530B"], data=8).mfu


@reproduces("flops.kort.table4", rel=0.06, note=KORTHIKANTI)
def korthikanti_layer_times(row):
    work = gpt({"layers": 48, "hidden": 6144, "heads": 64, "vocab": 51200, "seq": 2048})
    cluster, device = Cluster(A100, 1), Device.of(A100.accelerator, "bf16")
    times = {}
    for name, sequence_parallel in {"none": False, "sp": True, "full": False, "sel": False, "sel_sp": True}.items():
        plan = Plan(tensor=8, micro_batch=4, global_batch=4, seq=2048, sequence_parallel=sequence_parallel)
        forward, backward = layer_seconds(work, cluster, plan, device, recipe=MIXED_16, attention="eager")
        again = {"full": sum(forward.values()), "sel": forward["attention"]}.get(name.split("_")[0], 0.0)
        times[name] = [sum(forward.values()) / ms, (sum(backward.values()) + again) / ms]
    return times


# Narayanan et al. 2021

@functools.cache
def narayanan(layers, hidden, heads, vocab, seq, tp, pp, gpus, batch):
    work = gpt({"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "seq": seq})
    return work, search(work, Cluster(A100, gpus // 8), global_batch=batch, seq=seq, tensor=tp, pipeline=pp, context=1,
                        virtual=1, recompute="full", sequence_parallel=False, zero_stage=0,
                        embedding_as_layers=False)[0]


@reproduces(*ids(r"flops\.nara\.table1"), rel=0.20,
            note="the micro-batch is not published: the fastest by search; schedule not interleaved")
def narayanan_table_1(row):
    given = {key: value for key, value in row["inputs"].items() if key != "peak"}
    _, best = narayanan(**given)
    rate = best.estimate.hfu * row["inputs"]["peak"]        # their TFLOP/s count the recomputed forward pass, eq. 3
    return {"tflops_per_gpu": rate / TFLOP, "pct_peak": 100 * best.estimate.hfu,
            "agg_pflops": rate * given["gpus"] / PFLOP}


# MegaScale

@reproduces(*ids(r"flops\.megascale"), rel=0.20,
            note="175B with 128 heads, vocabulary 64,000 and 6 chunks a stage (their section 6.1). Megatron-LM: eager "
                 "attention, selective recomputation. MegaScale: fused attention, all communication overlapped; its "
                 "parallel block, sliding window and jitter at 12,288 GPUs are not modelled")
def megascale_step(row):
    given = row["inputs"]
    theirs = row["id"].startswith("flops.megascale.megascale")
    work = gpt({**given, "heads": 128, "vocab": 64000})
    plan = Plan(tensor=given["tp"], pipeline=given["pp"], data=given["gpus"] // 64, virtual=6, seq=given["seq"],
                global_batch=given["batch"], recompute="none" if theirs else "selective", zero_stage=2)
    step = estimate(work, Cluster(A100, given["gpus"] // 8), plan, attention="flash" if theirs else "eager",
                    overlap="all" if theirs else "none", causal=False)
    return {"iter_s": step.step_seconds, "mfu_pct": 100 * step.mfu}


# Llama 3

@reproduces(*ids(r"flops\.llama3\.table4"), rel=0.15,
            note="chunks a stage are not published: 4 of 2 layers. FSDP overlapped, gradients in fp32; the causal half of "
                 "attention counts, or the 131,072-token row would stand at 55 %. H100's matmul share is the A100's times "
                 "the ratio of their best measured products")
def llama_3_table_4(row):
    given = row["inputs"]
    plan = Plan(tensor=given["tp"], context=given["cp"], pipeline=given["pp"], data=given["dp"], virtual=4,
                global_batch=given["dp"] * given["batch_per_dp"], seq=given["seq"], recompute="none", zero_stage=2,
                embedding_as_layers=True)
    step = estimate(model("llama-3.1-405b"), Cluster(node("DGX H100"), given["gpus"] // 8), plan, recipe=MIXED_18,
                    overlap="data")
    return {"tflops": step.mfu * given["peak"] / TFLOP, "mfu_pct": 100 * step.mfu}
