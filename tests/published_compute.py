"""How the library arrives at published FLOP counts, utilizations and training times."""

from clusterlab.compute import forward_breakdown, forward_flops, hfu, mfu, training_flops, training_seconds
from clusterlab.hardware import accelerator
from clusterlab.transformer import Transformer, model
from clusterlab.units import PFLOP, TFLOP, day
from published import ids, reproduces

BOOKED = "device-hours as its authors booked them, restarts and idle time included"
NOT_A_FORMULA = {
    "flops.palm.hours": BOOKED,
    "flops.llama1.gpuh": BOOKED,
    "flops.llama2.gpuh": BOOKED,
    "flops.llama3.gpuh": BOOKED,
    "flops.llama4.gpuh": BOOKED,
    "flops.dsv3": BOOKED + "; latent attention lies outside Transformer",
    "flops.bloom.hours": BOOKED,
    "flops.pythia": BOOKED,
    "flops.misc.runs": BOOKED,
    "flops.neox": "a measured rate, without the batch that would tell the work",
}
SHAPES = [(96, 12288, 2048, 51200), (32, 4096, 8192, 50257), (3, 64, 16, 1000)]     # layers, hidden, seq, vocab
BATCH = 4


def gpt(layers, hidden, seq, vocab, heads=1):
    return Transformer(layers=layers, hidden=hidden, heads=heads, vocab=vocab, tied=True, bias=True, norm="layer",
                       positions=seq)


def closed_form(*formulas):
    """A printed formula of (B, L, h, s, V), evaluated on SHAPES."""
    return lambda row: [[formula(BATCH, *shape) for formula in formulas] for shape in SHAPES]


# Korthikanti et al.: model and hardware FLOP

@reproduces("flops.kort.eq7", kind="definition", value=closed_form(
    lambda B, L, h, s, v: 72 * B * L * s * h**2 * (1 + s / (6 * h) + v / (12 * h * L)),
    lambda B, L, h, s, v: 72 * B * L * s * h**2 * (1 + s / (3 * h) + v / (12 * h * L))))
def korthikanti_equations(row):
    return [[training_flops(gpt(*shape), batch=BATCH, seq=shape[2], recompute=recompute)
             for recompute in ("none", "selective")] for shape in SHAPES]


@reproduces("flops.kort.layer", kind="definition", value=closed_form(
    lambda B, L, h, s, v: 24 * B * s * h**2 + 4 * B * s**2 * h, lambda B, L, h, s, v: 2 * B * s * h * v))
def korthikanti_layer(row):
    ours = []
    for layers, hidden, seq, vocab in SHAPES:
        flops = forward_breakdown(gpt(layers, hidden, seq, vocab), batch=BATCH, seq=seq)
        ours.append([(sum(flops.values()) - flops["logits"]) / layers, flops["logits"]])
    return ours


@reproduces(*ids(r"flops\.kort\.table5"))
def korthikanti_table_5(row):
    given = row["inputs"]
    work = gpt(given["layers"], given["hidden"], given["seq"], given["vocab"], given["heads"])
    run = {"tokens_per_second": given["global_batch"] * given["seq"] / row["value"]["t_present_s"],
           "seq": given["seq"], "peak_flops": given["peak"], "devices": given["gpus"]}
    return {"mfu_pct": 100 * mfu(work, **run), "hfu_pct": 100 * hfu(work, recompute="selective", **run)}


@reproduces("flops.kort.dp8")
def korthikanti_530b_data_parallel(row):
    return 100 * mfu(model("mt-nlg-530b"), tokens_per_second=8 * 280 * 2048 / row["inputs"]["t2"], seq=2048,
                     peak_flops=312e12, devices=2240)


@reproduces("flops.kort.table4", abs=0.11, note="full recomputation repeats the forward pass; both summands are rounded to 0.1 ms")
def korthikanti_table_4(row):
    forward, backward = row["value"]["none"]
    layer = Transformer(layers=1, hidden=6144, heads=64, vocab=1, bias=True, norm="layer")
    repeated = training_flops(layer, batch=4, seq=2048, recompute="full") - training_flops(layer, batch=4, seq=2048)
    return {"full": [forward, backward + forward * repeated / forward_flops(layer, batch=4, seq=2048)]}


# Narayanan et al.

@reproduces("flops.nara.eq3", kind="definition", value=closed_form(
    lambda B, L, h, s, v: 96 * B * s * L * h**2 * (1 + s / (6 * h) + v / (16 * L * h))))
def narayanan_equation_3(row):
    return [[training_flops(gpt(*shape), batch=BATCH, seq=shape[2], recompute="full")] for shape in SHAPES]


@reproduces("flops.nara.eq2", kind="definition", rel=1e-3, note="the equation leaves out the final norm's 2·h", value=closed_form(
    lambda B, L, h, s, v: 12 * L * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * L * h))))
def narayanan_equation_2(row):
    return [[gpt(*shape).parameters()] for shape in SHAPES]


@reproduces(*ids(r"flops\.nara\.table1"), rel=0.005, abs=0.5, note="the printed TFLOP/s a GPU have three digits")
def narayanan_table_1(row):
    given, achieved = row["inputs"], row["value"]["tflops_per_gpu"]
    work = gpt(given["layers"], given["hidden"], given["seq"], given["vocab"], given["heads"])
    return {"params_B": work.parameters() / 1e9, "pct_peak": 100 * achieved * TFLOP / given["peak"],
            "agg_pflops": achieved * TFLOP * given["gpus"] / PFLOP}


@reproduces("flops.nara.time.gpt3")
def narayanan_time(row):
    given = row["inputs"]
    return training_seconds(given["P"], given["T"], devices=given["n"], achieved_flops=given["X"], factor=8) / day


@reproduces(*ids(r"flops\.nara\.table2"))
def narayanan_table_2(row):
    given = row["inputs"]
    work = training_flops(gpt(96, 12288, 2048, 51200, 96), batch=given["T"] / 2048, seq=2048, recompute="full")
    return work / (given["n"] * given["X"]) / day


@reproduces("flops.nara.bubble", kind="definition", value=lambda row: [(p - 1) / m for p, m in ((4, 8), (8, 32), (2, 3))])
def narayanan_bubble(row):
    from clusterlab.pipeline import simulate
    return [simulate("1f1b", stages=p, micro_batches=m, forward=1.0, backward=2.0).bubble_ratio
            for p, m in ((4, 8), (8, 32), (2, 3))]


# totals

@reproduces("flops.cookbook.gpt3", rel=0.002, note="the tool counts the logits' forward only, 0.38 of 429 ZFLOP instead of 1.13")
def cookbook_gpt3(row):
    given = row["inputs"]
    return training_flops(gpt(given["L"], given["h"], given["s"], given["V"], 96), batch=given["T"] / given["s"],
                          seq=given["s"], recompute="full")


def six_nd(parameters, tokens):
    """FLOP: the seconds that one device of 1 FLOP/s would take."""
    return training_seconds(parameters, tokens, devices=1, achieved_flops=1.0)


@reproduces("flops.gpt3.table")
def gpt3_total(row):
    flops = six_nd(row["inputs"]["P"], row["inputs"]["T"])
    return [flops, flops / (PFLOP * day)]


@reproduces(*ids(r"flops\.gpt3D1"))
def gpt3_table_d1(row):
    given = row["inputs"]
    flops = six_nd(given["params_M"] * 1e6 * given["active_fraction"], given["tokens_B"] * 1e9)
    return [flops / (PFLOP * day), flops]


@reproduces("flops.chinchilla")
def chinchilla(row):
    unit = {"M": 1e6, "B": 1e9, "T": 1e12}
    return {name: [six_nd(float(name[:-1]) * unit[name[-1]], tokens), None]
            for name, (_, tokens) in row["value"].items()}


@reproduces("flops.llama3.405b")
def llama_3_total(row):
    return six_nd(row["inputs"]["P"], row["inputs"]["T"])


@reproduces("flops.opt175")
def opt_total(row):
    opt = model("opt-175b")
    flops = training_flops(opt, batch=300e9 / 2048, seq=2048, recompute="full")
    return [None, flops, flops / (1024 * row["inputs"]["X"]) / day]


# utilization

@reproduces("flops.palm.mfu", note="PaLM recomputes a part that the paper does not state, so its HFU is not derived")
def palm_mfu(row):
    given = row["inputs"]
    palm = model("palm-540b")
    arguments = {"tokens_per_second": given["tok_s"], "peak_flops": given["peak"], "devices": given["chips"]}
    # without attention: a sequence so short that its s² term vanishes
    return [100 * mfu(palm, seq=1e-3, **arguments), 100 * mfu(palm, seq=given["T"], **arguments), None]


@reproduces(*ids(r"flops\.llama3\.table4"))
def llama_3_table_4(row):
    return {"mfu_pct": 100 * row["value"]["tflops"] * TFLOP / accelerator("H100 SXM").dense_flops["bf16"]}


@reproduces(*ids(r"flops\.megascale"))
def megascale(row):
    given = row["inputs"]
    rate = given["batch"] * given["seq"] / row["value"]["iter_s"]
    share = mfu(gpt(96, 12288, 2048, 51200, 96), tokens_per_second=rate, seq=given["seq"], peak_flops=given["peak"],
                devices=given["gpus"])
    return {"ktok_s": rate / 1e3, "days_300B": 300e9 / rate / day, "mfu_pct": 100 * share,
            "agg_pflops": share * given["gpus"] * given["peak"] / PFLOP}


@reproduces(*ids(r"flops\.foundry"))
def llm_foundry(row):
    given = row["inputs"]
    layers, hidden, heads, recompute = (80, 8192, 64, "full") if "70b" in row["id"] else (32, 4096, 32, "none")
    mpt = gpt(layers, hidden, given["seq"], 50368, heads)
    assert mpt.parameters() == given["params"]
    run = {"tokens_per_second": given["tokens_per_s_gpu"], "seq": given["seq"], "peak_flops": given["peak"]}
    return {"mfu": 100 * mfu(mpt, **run), "hfu": 100 * hfu(mpt, recompute=recompute, **run),
            "model_tflops": mfu(mpt, **run) * given["peak"] / TFLOP}


@reproduces("flops.peak.h100", "flops.peak.a100", kind="definition", abs=0.2, note="the datasheets print 989.4 and 312")
def peaks(row):
    return accelerator("H100 SXM" if "h100" in row["id"] else "A100 SXM 80GB").dense_flops["bf16"] / TFLOP
