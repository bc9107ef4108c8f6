"""How the library arrives at published memory figures: ZeRO, activation recomputation, checkpoints, parameters."""

from clusterlab.activations import activation_bytes_per_layer, stored_tensors
from clusterlab.compute import training_flops
from clusterlab.memory import FP32, MIXED_16, MIXED_18, MIXED_20, Recipe, device_memory, model_state_bytes
from clusterlab.plan import Plan
from clusterlab.transformer import Transformer, model
from clusterlab.units import GB, GiB, TiB
from published import ids, reproduces

NOT_A_FORMULA = {
    "mem.chen": "a measured ResNet; its √n law is about checkpoints every √n layers, which no function here models",
    "mem.zero.bw": "bandwidths the paper assumed, of the hardware of its time",
    "mem.llama3.ckptshard": "a range over ranks, without the layout that would give it",
    "mem.mlperf.ckpt.1T": "the model's shape is not published",
}


def gpt(layers, hidden, heads=1, vocab=51200, **more):
    return Transformer(layers=layers, hidden=hidden, heads=heads, vocab=vocab, bias=True, norm="layer", **more)


# ZeRO

def zero(parameters, stage, ranks):
    return model_state_bytes(parameters, zero_stage=stage, data_parallel=ranks).total / GB


@reproduces(*ids(r"mem\.zero\.fig1"), kind="definition")
def zero_figure_1(row):
    stage = int(row["id"][-1]) if row["id"][-1].isdigit() else 0
    return zero(row["inputs"]["params"], stage, row["inputs"]["dp"])


@reproduces(*ids(r"mem\.zero\.table1\.1000B"), kind="definition", abs=1.0,
            note="the paper cuts these to whole GB instead of rounding: 4011.7 is printed 4011")
@reproduces(*ids(r"mem\.zero\.table1\.7"), kind="definition")
def zero_table_1(row):
    return [zero(row["inputs"]["params"], stage, row["inputs"]["dp"]) for stage in (1, 2, 3)]


def numbers(texts):
    return [float(text[:-1]) * {"B": 1e9, "T": 1e12}[text[-1]] for text in texts]


@reproduces(*ids(r"mem\.zero\.table2"), kind="definition", value=lambda row: numbers(row["value"]), rel=0.024,
            note="rows after the first are the rounded first row times MP, and 1024 B is printed as 1T")
def zero_table_2(row):
    given = row["inputs"]
    per_parameter = [model_state_bytes(1.0, zero_stage=stage, data_parallel=given["dp"],
                                       tensor_parallel=given["mp"]).total for stage in range(4)]
    return [given["mem_GB"] * GB / size for size in per_parameter] + [None, None]


@reproduces("mem.zero.activations.gpt2", rel=0.03,
            note="the paper's 12·h·b·s·L elements of 2 bytes; it leaves out the attention core, norm inputs and masks")
def zero_gpt2_activations(row):
    h, b, s, layers = (row["inputs"][k] for k in "hbsL")
    # 12 h: query, key, value, attention output (4 h) and the two sides of the MLP's activation (8 h)
    counted = ("query", "key", "value", "output projection input", "up", "down input")
    kept = sum(tensor.bytes for tensor in stored_tensors(gpt(layers, h, 25), seq=s) if tensor.name in counted)
    return kept * b * s * layers / GB


@reproduces("mem.zero.fusedbuf", kind="definition")
def zero_flat_gradients(row):
    return [model_state_bytes(p, recipe=FP32).gradients / GB for p in row["inputs"]["params"]]


@reproduces("mem.zero.comm", kind="definition")
def zero_traffic(row):
    """Elements through a rank a step: a gradient reduce-scatter, and one gather of weights for each time they are
    needed whole: after the step (until stage 2), before forward and before backward (stage 3)."""
    def held_whole(stage):
        return model_state_bytes(1.0, recipe=Recipe(1, 0, 0, 0), zero_stage=stage, data_parallel=2).weights == 1
    return {name: 1 + (1 if held_whole(stage) else 2) for stage, name in enumerate(("dp", "zero1", "zero2", "zero3"))}


# bytes a parameter

@reproduces("mem.adam.bytes", kind="definition")
def adam_bytes(row):
    return MIXED_18.total


@reproduces("mem.adam8bit", kind="definition")
def adam_8_bit(row):
    return model_state_bytes(1.0, recipe=Recipe(weight=2, gradient=2, master=0, moments=2)).optimizer


@reproduces("mem.opt.cookbook", kind="definition")
def cookbook_optimizers(row):
    def optimizer(moments):
        return model_state_bytes(1.0, recipe=Recipe(2, 4, 4, moments)).optimizer
    return {"adamw": optimizer(8), "sgd_momentum": optimizer(4), "muon": optimizer(4)}


@reproduces("mem.tmath", kind="definition")
def transformer_math(row):
    return [None, MIXED_16.master + MIXED_16.moments, 4 + 2, 4 + 4]


@reproduces("mem.megatron.bytes", kind="definition", value=lambda row: [18, *(6 + 12 / d for d in (1, 8, 64))])
def megatron_bytes(row):
    return [model_state_bytes(1.0, recipe=MIXED_18).total,
            *(model_state_bytes(1.0, recipe=MIXED_18, zero_stage=1, data_parallel=d).total for d in (1, 8, 64))]


@reproduces("mem.playbook.table", kind="definition")
def playbook_table(row):
    return [[model_state_bytes(p, recipe=recipe).total / GB for recipe in (MIXED_16, MIXED_20)]
            for p in row["inputs"]["params"]]


# DeepSpeed's estimators: 18 bytes, of which 2 are weights a GPU holds, and offload

@reproduces("mem.ds.t5-3b.z2.cpu", "mem.ds.t5-3b.z2.none", kind="definition")
def deepspeed_zero_2(row):
    given = row["inputs"]
    states = model_state_bytes(given["params"], recipe=DEEPSPEED_2, zero_stage=2, data_parallel=given["gpus"])
    on_gpu = model_state_bytes(given["params"], recipe=Recipe(2, 0, 0, 0)) if row["id"].endswith("cpu") else states
    return on_gpu.total / GiB


# 4P + 16P/N: the 4 are 16-bit weights and the 16-bit gradients before they are scattered, the 16 are all fp32
DEEPSPEED_2 = Recipe(weight=2 + 2, gradient=4, master=4, moments=8)


@reproduces("mem.ds.t5-3b.z2.cpumem", kind="definition")
def deepspeed_cpu(row):
    """The host holds the fp32 states once, or fp32 gradients for each of its GPUs if that is more."""
    given = row["inputs"]
    states = model_state_bytes(given["params"], recipe=FP32)
    return max(given["gpus"] * states.gradients, states.total) * given["buffer"] / GiB


@reproduces("mem.ds.multipliers", kind="definition",
            value=lambda row: {"z2_offload_none": 4 + 16 / 8, "z3_none": 18 / 8, "z3_offload_opt": 2 / 8})
def deepspeed_multipliers(row):
    def bytes_per_parameter(recipe, stage):
        return model_state_bytes(1.0, recipe=recipe, zero_stage=stage, data_parallel=8)
    return {"z2_offload_none": bytes_per_parameter(DEEPSPEED_2, 2).total,
            "z3_none": bytes_per_parameter(MIXED_18, 3).total,
            "z3_offload_opt": bytes_per_parameter(MIXED_18, 3).weights}


# activations

def activation_unit(shape, **how):
    """Activation bytes of one layer in units of s·b·h."""
    return activation_bytes_per_layer(gpt(1, shape["h"], shape["a"]), batch=1, seq=shape["s"], **how) / (
        shape["s"] * shape["h"])


SHAPES = [{"s": 2048, "h": 12288, "a": 96}, {"s": 1024, "h": 2048, "a": 16}, {"s": 8192, "h": 8192, "a": 64}]


def closed_form(formula):
    return lambda row: [formula(shape["a"], shape["s"], shape["h"]) for shape in SHAPES]


@reproduces("mem.kort.table2.none", "mem.playbook.act", kind="definition",
            value=closed_form(lambda a, s, h: 34 + 5 * a * s / h))
def korthikanti_nothing_recomputed(row):
    return [activation_unit(shape) for shape in SHAPES]


@reproduces("mem.kort.table2.full", kind="definition", value=closed_form(lambda a, s, h: 2))
def korthikanti_full(row):
    return [activation_unit(shape, tensor_parallel=8, recompute="full") for shape in SHAPES]


@reproduces("mem.megatron.act", kind="definition")
def megatron_activations(row):
    return 8 * activation_unit(SHAPES[0], tensor_parallel=8, sequence_parallel=True, recompute="selective")


@reproduces("mem.kort.5as", kind="definition", abs=0.01)
def korthikanti_attention_core(row):
    core, saved, extra = [], [], []
    for a, s, h in (row["inputs"]["gpt3"], row["inputs"]["mtnlg"]):
        shape = {"a": a, "s": s, "h": h}
        core.append(activation_unit(shape) - activation_unit(shape, recompute="selective"))
        saved.append(core[-1] / activation_unit(shape))
        # the paper's s/6h leaves logits out: many layers make them vanish
        deep = gpt(10000, h, a, vocab=1)
        extra.append(training_flops(deep, batch=1, seq=s, recompute="selective")
                     / training_flops(deep, batch=1, seq=s) - 1)
    return core + saved + extra


@reproduces(*ids(r"mem\.kort\.fig7"))
def korthikanti_figure_7(row):
    given, t = row["inputs"], {"tensor_parallel": row["inputs"]["t"]}
    baseline = activation_unit(given, **t)
    ways = ({"sequence_parallel": True}, {"recompute": "selective"},
            {"sequence_parallel": True, "recompute": "selective"}, {"recompute": "full"})
    return [100 * activation_unit(given, **t, **way) / baseline for way in ways]


@reproduces("mem.mle.llama8b", kind="definition")
def llama_8b_long_context(row):
    given = row["inputs"]
    hidden = 2 * given["b"] * given["s"] * given["h"]
    llama = model("llama-3.1-8b")
    full = activation_bytes_per_layer(llama, batch=1, seq=given["s"], recompute="full")
    logits = device_memory(llama, Plan(global_batch=1, seq=given["s"])).logits
    return {"hidden": full / GiB, "layer": given["copies"] * hidden / GiB, "ckpt": given["L"] * full / GiB,
            "nockpt": given["L"] * given["copies"] * hidden / GiB, "logits": logits / GiB}


# checkpoints: weights, master copy and moments are written, gradients are not

@reproduces("mem.bloom.ckpt", kind="definition")
def bloom_checkpoint(row):
    return checkpoint(row["inputs"]["params"], MIXED_16) / GiB


def checkpoint(parameters, recipe):
    states = model_state_bytes(parameters, recipe=recipe)
    return states.weights + states.optimizer


@reproduces("mem.opt175.ckpt", note="printed TB are TiB: fp16 weights and fp32 moments, no fp32 master copy", rel=0.05)
def opt_checkpoint(row):
    return checkpoint(row["inputs"]["params"], Recipe(2, 2, 0, 8)) / TiB


@reproduces(*ids(r"mem\.mlperf\.ckpt\.(8|70|405)B"), rel=0.03,
            note="printed GB and TB are GiB and TiB, 14 bytes a parameter as BLOOM's; MLPerf adds other state")
def mlperf_checkpoint(row):
    return checkpoint(row["inputs"]["params"], MIXED_16) / (TiB if row["unit"].startswith("TB") else GiB)


# parameters

@reproduces(*ids(r"params\.llama"))
def llama_parameters(row):
    return model(row["id"].removeprefix("params.")).parameters()


@reproduces("mem.bloom.params")
def bloom_parameters(row):
    bloom = model("bloom-176b")
    return [bloom.outer_weights()[0][0].size, bloom.layer_parameters()]


@reproduces("params.cookbook.gpt3")
def cookbook_gpt3(row):
    return gpt(96, 12288, 96, positions=2048).parameters() / 1e9


@reproduces("mem.cookbook.20b", rel=0.001,
            note="the tool leaves out 5 h of biases a layer")
def cookbook_20b(row):
    given = row["inputs"]
    twenty = gpt(given["L"], given["h"], given["a"], given["V"], positions=given["s"])
    states = model_state_bytes(twenty.parameters(), recipe=MIXED_18)
    activations = given["L"] * activation_bytes_per_layer(twenty, batch=given["b"], seq=given["s"])
    parts = {"act": activations, "model": states.weights, "grad": states.gradients, "opt": states.optimizer}
    return {name: value / GiB for name, value in (parts | {"total": sum(parts.values())}).items()}
