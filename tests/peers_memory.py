"""Parameters, FLOP and memory by other tools, beside ours."""

import dataclasses

from clusterlab.activations import activation_bytes_per_layer
from clusterlab.collectives import all_reduce_seconds
from clusterlab.compute import attainable_flops, forward_breakdown, training_flops, training_seconds
from clusterlab.hardware import accelerator
from clusterlab.memory import MIXED_16, MIXED_18, MIXED_20, Recipe, device_memory, model_state_bytes
from clusterlab.plan import Plan
from clusterlab.transformer import Transformer, model
from peers import compares, of

INFERENCE = "serving: key-value caches and batches of requests, which no function here models"
TORUS = "a sharded matrix product over a TPU torus, worked by hand in the book"
NOT_COMPARED = {
    **dict.fromkeys(of("EleutherAI/cookbook", "KV cache"), INFERENCE),
    **dict.fromkeys(of("EleutherAI/cookbook", "MoE interval"), "experts in every second layer lie outside Transformer"),
    **dict.fromkeys(of("scaling-book", "inference", lambda row: row["id"] != "v262"), INFERENCE),
    **dict.fromkeys(("v238", "v242", "v244", "v245", "v248", "v271", "v272"), TORUS),
    **dict.fromkeys(("v239", "v241", "v247"), "one division or product of two numbers that the question gives"),
    **dict.fromkeys(("v260", "v268", "v269"), "bounds on batch and chips that follow from the book's own rules of thumb"),
    "v231": "28 copies were measured on a model whose norms and rotations compute in fp32; the tensors are not listed",
    "v177": "the best of the part of a search that 25 seconds reached, with the optimizer in host memory",
    "v017": "spreads 126 layers over 16 stages as 7.875 each; real stages hold 7 or 8",
    "v018": "expert tensor parallelism 1 beside tensor parallelism 2, which Plan does not express",
}
NAMES = {"llama2-7b": "llama-2-7b", "llama2-13b": "llama-2-13b", "llama2-70b": "llama-2-70b",
         "llama3-8b": "llama-3.1-8b", "llama3-70b": "llama-3.1-70b", "llama3-405b": "llama-3.1-405b"}


def shape(name):
    if name.startswith("gpt3-175b"):
        return dataclasses.replace(model("gpt-3-175b"), vocab=51200 if name.endswith("51200") else 50257)
    return model(NAMES.get(name, name))


def given_shape(row):
    i = row["inputs"]
    return Transformer(layers=i["L"], hidden=i["h"], heads=i["a"], kv_heads=i["kv"], ffn=i["f"], vocab=i["V"],
                       gated=bool(i["glu"]), bias=bool(i["bias"]), norm="layer" if i["ln"] == 2 else "rms",
                       tied=bool(i["tied"]), positions=i["pos"], experts=i["E"] or 1, experts_per_token=i["k"] or 1)


# parameters

@compares(*of("Megatron-LM", "num_total_parameters"), because="leaves out biases of linear layers and learned positions")
def megatron_parameters(row):
    ours, out = given_shape(row), row["outputs"]
    missing = ours.positions * ours.hidden + ours.layers * (9 * ours.hidden if ours.bias else 0)
    states = model_state_bytes(out["num_total_parameters"], recipe=MIXED_18).total
    return [(out["num_total_parameters"] + missing, ours.parameters()),
            (out["num_active_parameters"] + missing, ours.active_parameters()),
            (out["weight_and_optimizer_bytes_no_distopt"], states)]


@compares(*of("llm-analysis", "get_num_params_total"),
          because="counts an untied head with the embedding, and no positions and biases")
def llm_analysis_parameters(row):
    ours, out = given_shape(row), row["outputs"]
    missing = 0 if ours.tied else ours.vocab * ours.hidden
    if ours.bias:
        missing += (ours.positions + 11 * ours.layers + 1) * ours.hidden
    return [(out["total"] + missing, ours.parameters()), (out["active"] + missing, ours.active_parameters())]


@compares(*of("EleutherAI/cookbook", "calc_params"),
          because="gives every model the norms, positions and (short of 5 h a layer) biases of a GPT")
def cookbook_parameters(row):
    ours, theirs, argv = shape(row["inputs"]["model"]), row["outputs"]["total_params"], row["inputs"]["argv"]
    if ours.norm == "layer":
        return theirs + 5 * ours.hidden * ours.layers, ours.parameters()
    positions = int(argv[argv.index("-s") + 1])
    return theirs - (6 * ours.layers + 1 + positions) * ours.hidden, ours.parameters()


@compares(*of("calculon", "num_parameters"), because="leaves out the final norm; knows no gated MLP, so its PaLM has 429 B")
def calculon_parameters(row):
    i = row["inputs"]
    ours = Transformer(layers=i["num_blocks"], hidden=i["hidden"], heads=i["attn_heads"], head_dim=i["attn_size"],
                       ffn=i["feedforward"], vocab=51200, positions=i["seq_size"], tied=True, bias=True, norm="layer")
    return row["outputs"]["params"] + 2 * i["hidden"], ours.parameters()


@compares("v254", because="the book's exact count has one norm a layer; it prints 16 B because it rounds 4096 to 4e3")
def scaling_book_parameters(row):
    ours = Transformer(layers=64, hidden=4096, heads=32, ffn=16384, gated=True, vocab=32000)
    return row["outputs"]["recomputed"] + (64 + 1) * 4096, ours.parameters()


@compares("v262", because="the book leaves norms out")
def scaling_book_gqa_parameters(row):
    i = row["inputs"]
    ours = Transformer(layers=i["L"], hidden=i["D"], heads=i["N"], kv_heads=i["K"], head_dim=i["H"], ffn=i["F"],
                       gated=True, vocab=i["V"], tied=True)
    return row["outputs"]["recomputed"] + (2 * 64 + 1) * i["D"], ours.parameters()


# FLOP

def router_flops(row):
    i = row["inputs"]
    return 3 * forward_breakdown(shape(i["model"]), batch=i["batch"], seq=i["seq"])["router"]


@compares(*of("Megatron-LM", "num_floating"), because="counts the causal half of attention, and no router")
def megatron_flops(row):
    i = row["inputs"]
    ours = training_flops(shape(i["model"]), batch=i["batch"], seq=i["seq"], causal=True)
    return row["outputs"]["flops_per_iteration"] + router_flops(row), ours


@compares(*of("nanotron"))
def nanotron_flops(row):
    i = row["inputs"]
    return row["outputs"]["model_flops"], training_flops(shape(i["model"]), batch=i["batch"], seq=i["seq"])


@compares(*of("llm-analysis", "get_num_flops"))
def llm_analysis_flops(row):
    i = row["inputs"]
    ours = training_flops(shape(i["model"]), batch=i["batch"], seq=i["seq"])
    return [(row["outputs"]["fwd_plus_bwd"], ours), (row["outputs"]["fwd"], ours / 3)]


@compares(*of("EleutherAI/cookbook", "calc_flops", lambda row: "MoE interval" not in row["function"]), rel=1e-6,
          because="counts the logits' forward pass only; takes the MLP as 4 h wide whatever one asks")
def cookbook_flops(row):
    i, out = row["inputs"], row["outputs"]
    ours, argv = shape(i["model"]), i["argv_with_ffn_hidden_size"]
    seq = int(argv[argv.index("-s") + 1])
    how = {"batch": i["tokens"] / seq, "seq": seq}
    # its flag -ca switches checkpointing off
    counted = training_flops(ours, **how, recompute="full" if i["checkpoint_activations"] else "none")
    return out["total_flops_if_ffn_expansion_exact"] + 2 * out["embedding_flops"], counted


@compares("v230")
def ml_engineering_tflops(row):
    i = row["inputs"]
    seconds = training_seconds(i["model_size_in_B"] * 1e9, i["seqlen"] * i["global_batch"], devices=i["total_gpus"],
                               achieved_flops=row["outputs"]["TFLOPS"] * 1e12, factor=8)
    return i["time_s"], seconds


@compares("v256")
def scaling_book_crossover(row):
    flops = forward_breakdown(Transformer(layers=1, hidden=4096, heads=32, vocab=1), batch=1, seq=8192)
    return flops["qkv"] + flops["projection"], flops["attention"]


@compares("v257", "v265")
def scaling_book_totals(row):
    i, printed = row["inputs"] or {"active": 70e9, "tokens": 15e12}, row["outputs"]["recomputed"]
    return printed[1], training_seconds(i["active"], i["tokens"], devices=1, achieved_flops=1.0)


@compares("v266")
def scaling_book_days(row):
    achieved = 0.4 * accelerator("TPU v5p").dense_flops["bf16"]
    return row["outputs"]["recomputed"], training_seconds(70e9, 15e12, devices=8960, achieved_flops=achieved) / 86400


@compares("v235", "v236")
def scaling_book_ridge(row):
    i = row["inputs"]
    peak = i.get("int8_ops") or i["flops"]
    part = dataclasses.make_dataclass("Part", ["name", "dense_flops", "memory_bandwidth"])("TPU", {"int8": peak}, i["hbm"])
    batch = row["outputs"]["recomputed"]       # each weight of one byte is multiplied and added `batch` times
    return [(peak, attainable_flops(2 * batch, part, "int8")), (0.5 * peak, attainable_flops(batch, part, "int8"))]


# model states

@compares(*of("DeepSpeed", "zero2"))
def deepspeed_2(row):
    i, ranks = row["inputs"], row["inputs"]["num_gpus_per_node"] * row["inputs"]["num_nodes"]
    recipe = Recipe(2, 0, 0, 0) if i["cpu_offload"] else MIXED_20       # gradients in 16 bits and again in fp32
    ours = model_state_bytes(i["total_params"], recipe=recipe, zero_stage=2, data_parallel=ranks)
    return row["outputs"]["gpu_bytes"], ours.total


@compares(*of("DeepSpeed", "zero3"), rel=1e-8)
def deepspeed_3(row):
    i, ranks = row["inputs"], row["inputs"]["num_gpus_per_node"] * row["inputs"]["num_nodes"]
    recipe = MIXED_18
    if i["cpu_offload"]:
        recipe = Recipe(0 if i["cpu_offload_params"] else 2, 0, 0, 0)
    gathered = model_state_bytes(i["largest_layer_params"], recipe=Recipe(2, 2, 0, 0)).total
    ours = model_state_bytes(i["total_params"], recipe=recipe, zero_stage=3, data_parallel=ranks).total + gathered
    return row["outputs"]["gpu_bytes"], ours


@compares(*of("EleutherAI/cookbook", "calc_mem", lambda row: "KV" not in row["function"]),
          because="leaves gradients whole under tensor and pipeline parallelism, and cuts ZeRO-3 weights by them twice")
def cookbook_states(row):
    i, out = row["inputs"], row["outputs"]
    cut = i["tp"] * i["pp"]
    ours = model_state_bytes(out["total_params"], recipe=MIXED_18, zero_stage=i["zero"],
                             data_parallel=i["num_gpus"] // cut, tensor_parallel=i["tp"], pipeline_parallel=i["pp"])
    twice = i["tp"] if i["zero"] == 3 else 1
    return [(out["per_gpu_model_mem"] * twice, ours.weights), (out["per_gpu_optimizer_mem"], ours.optimizer),
            (out["per_gpu_gradient_mem"] / (1 if i["zero"] >= 2 else cut), ours.gradients)]


@compares(*of("llm-analysis", "model states"), rel=0.05,
          because="with pipeline parallelism every stage also holds the embedding: v117 is 4.5 % above the mean shard")
def llm_analysis_states(row):
    i, out = row["inputs"], row["outputs"]
    ours = model_state_bytes(out["num_params_total"], recipe=MIXED_18, zero_stage=i["zero"], data_parallel=i["dp"],
                             tensor_parallel=i["tp"], pipeline_parallel=i["pp"])
    pairs = [(out["weight_memory_per_gpu"], ours.weights), (out["gradient_memory_per_gpu"], ours.gradients),
             (out["optimizer_state_memory_per_gpu"], ours.optimizer)]
    if i["pp"] == 1:
        assert all(abs(theirs / mine - 1) < 1e-3 for theirs, mine in pairs)
    return pairs


@compares(*of("ultrascale-playbook", "paramGradsOpt"))
def playbook_states(row):
    i, out = row["inputs"], row["outputs"]
    count = out["Parameters"] / 2 * (i["dp"] if i["zero"] == 3 else 1)
    ours = model_state_bytes(count, recipe=MIXED_16, zero_stage=i["zero"], data_parallel=i["dp"])
    pairs = [(out["Parameters"], ours.weights), (out["Gradients"], ours.gradients),
             (out["OptimizerAverages"], ours.optimizer)]
    return pairs + ([(count, shape("gpt3-175b").parameters())] if i["model"] == "gpt3-175b" else [])


@compares("v259")
def scaling_book_states(row):
    return row["outputs"]["recomputed"][0], model_state_bytes(13.016e9, recipe=Recipe(2, 0, 0, 8)).total


@compares(*of("Megatron-LM", "compute_weight_and_optimizer_memory",
              lambda row: row["id"] in ("v011", "v012", "v014", "v015", "v019")), rel=0.015,
          because="divides norms, biases and positions among tensor ranks too, which each hold them whole")
def megatron_shard(row):
    i, out = row["inputs"], row["outputs"]
    tensor, pipeline = i.get("tp", 1), i.get("pp", 1)
    distributed = i.get("use_distributed_optimizer", i.get("dist_opt"))
    plan = Plan(tensor=tensor, pipeline=pipeline, data=i["dp"], expert=i.get("ep", 1), global_batch=i["dp"], seq=2048,
                zero_stage=1 if distributed else 0)
    stages = [device_memory(shape(i["model"]), plan, recipe=MIXED_18, stage=s) for s in {0, pipeline - 1}]
    ours = max(m.weights + m.gradients + m.optimizer for m in stages)
    return out.get("bytes_most_loaded_shard") or out["bytes"], ours


# activations

@compares(*of("Megatron-LM", "compute_activation_memory"), rel=1e-6,
          because="counts two of a gated MLP's four tensors and keys and values as wide as queries; adds token ids")
def megatron_activations(row):
    i, ours = row["inputs"], shape(row["inputs"]["model"])
    plan = Plan(tensor=i["tp"], pipeline=i["pp"], global_batch=i["pp"], seq=i["seq"])
    memory = device_memory(ours, plan, stage=0)
    tokens, kv = i["seq"], ours.kv_heads * ours.head_dim
    wrong = (4 * ours.ffn if ours.gated else 0) - 4 * (ours.hidden - kv)
    ids = 8 * tokens * i["pp"] / i["tp"]
    theirs = row["outputs"]["with_sp_selective_bytes"] - ids + ours.layers * tokens * wrong / i["tp"]
    return theirs, memory.activations + memory.logits


@compares(*of("ultrascale-playbook", "activationMemory"),
          because="leaves the attention core whole under sequence parallelism, though its heads are shared out")
def playbook_activations(row):
    i, ours = row["inputs"], shape(row["inputs"]["model"])
    how = {"tensor_parallel": i["tp"], "sequence_parallel": i["seq_parallel"], "recompute": i["recompute"]}
    theirs = row["outputs"]["per_layer"]
    if i["seq_parallel"] and i["recompute"] == "none":
        theirs -= 5 * ours.heads * i["seq"] ** 2 * i["batch"] * (1 - 1 / i["tp"])
    return theirs, activation_bytes_per_layer(ours, batch=i["batch"], seq=i["seq"], **how)


@compares(*of("llm-analysis", "get_activation_memory_per_layer"),
          because="forgets one of two dropout masks, counts a gated MLP as two tensors, and cuts the kept input always")
def llm_analysis_activations(row):
    i, out, ours = row["inputs"], row["outputs"], shape(row["inputs"]["model"])
    tokens = i["batch"] * i["seq"]
    mask = tokens * ours.hidden / i["sp"]
    gated = 4 * tokens * ours.ffn / i["tp"] if ours.gated else 0
    how = {"batch": i["batch"], "seq": i["seq"], "tensor_parallel": i["tp"], "sequence_parallel": i["sp"] > 1}
    kept = {mode: activation_bytes_per_layer(ours, **how, recompute=mode) for mode in ("none", "selective", "full")}
    return [(out["NONE"] + mask + gated, kept["none"]), (out["ATTN_COMPUTE"] + mask + gated, kept["selective"]),
            (out["FULL"] * (1 if i["sp"] > 1 else i["tp"]), kept["full"])]


@compares(*of("calculon", "activation memory per layer"), rel=1e-3,
          because="keeps gathered inputs, drops the GeLU's input when fused, and the inputs of what it recomputes; the "
                  "coefficient of the paper, which ours is compared with, fits the measured runs")
def calculon_activations(row):
    i = row["inputs"]
    mode = {"none": "none", "attn_only": "selective", "full": "full"}[i["recompute"]]
    ours = activation_bytes_per_layer(shape("gpt3-175b"), batch=1, seq=2048, tensor_parallel=i["tp"],
                                      sequence_parallel=i["comm"] == "rs_ag", recompute=mode)
    pairs = [(row["paper_arxiv_2205_05198_coefficient"], ours / (2048 * 12288))]
    if i["tp"] == 1 and not i["fused"] and mode == "none":
        pairs.append((row["outputs"]["act_per_layer_in_sbh"], ours / (2048 * 12288)))
    return pairs


# step times: the parts that are counts

@compares(*of("calculon", "Llm.run"), rel=3e-3, because="adds the element-wise operations of a layer, up to 0.23 %")
def calculon_layer_flops(row):
    execution = row["inputs"]["execution"]
    ours = {"megatron-1T": "megatron-1t", "megatron-22B": "megatron-22b", "gpt3-175B": "gpt3-175b",
            "turing-530B": "mt-nlg-530b"}[row["inputs"]["model"]]
    flops = forward_breakdown(shape(ours), batch=execution["microbatch_size"], seq=2048)
    layer = (sum(flops.values()) - flops["logits"]) / shape(ours).layers
    return row["outputs"]["block_fw_flops"], layer / execution["tensor_par"]


@compares("v207", "v208", because="an all-reduce at the full link, without latency")
def llm_analysis_all_reduce(row):
    i = row["inputs"]
    wire = accelerator("A100 SXM 80GB" if "a100" in i["gpu"] else "H100 SXM").scale_up
    return row["outputs"]["seconds"], all_reduce_seconds(i["bytes"], i["tp"], dataclasses.replace(wire, latency=0.0))
