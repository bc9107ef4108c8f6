"""Published values of reliability: failures counted, failures predicted, and intervals between checkpoints."""

from clusterlab import reliability
from clusterlab.units import day, hour
from published import ids, reproduces, rows

TABLE_5 = ids(r"rel\.llama3\.t5\.")


@reproduces("rel.llama3.total", kind="definition",
            note="the causes of table 5 sum to the unexpected interruptions; 47 planned ones come on top")
def llama3_interruptions(row):
    unexpected = sum(rows()[id]["value"][0] for id in TABLE_5)
    return [unexpected + 47, 47, unexpected]


@reproduces("rel.llama3.t5.faulty_gpu", kind="definition", abs=5.3,
            note="the printed 30.1 % is an error of the source: 148 of 419 is 35.3 %, and only so do the shares sum "
                 "to 100 %")
@reproduces(*TABLE_5[1:], kind="definition")
def llama3_causes(row):
    """The count as the Poisson mean of its own rate, and its share of all."""
    count, total = row["value"][0], row["inputs"]["total"]
    rate_mtbf = 54 * day / count
    everything = reliability.system_mtbf(54 * day, total)
    return [reliability.expected_failures(54 * day, rate_mtbf), 100 * everything / rate_mtbf]


@reproduces("rel.meta.mttf.16384")
def meta_projection(row):
    inputs = row["inputs"]
    return reliability.system_mtbf(day / inputs["rate_per_node_day"], 16_384 / inputs["gpus_per_node"]) / hour


def _ettr_as_printed(row):
    names = {"N": 512.0, "r": 7e-8, "u0": 300.0, "dt": 3600.0, "w": 60.0}
    return [eval(row["value"], {"__builtins__": {}}, names | {"r": r}) for r in (7e-8, 3e-7)]


@reproduces("rel.meta.ettr", value=_ettr_as_printed, kind="definition", rel=1e-12,
            note="the printed expression, evaluated for 512 nodes at two failure rates")
def meta_ettr(row):
    return [reliability.ettr(3600.0, write=60.0, mtbf=reliability.system_mtbf(1 / r, 512), restart=300.0)
            for r in (7e-8, 3e-7)]


@reproduces("rel.young")
def young(row):
    return reliability.young_interval(row["inputs"]["delta"], row["inputs"]["M"])


NOT_A_FORMULA = {
    "rel.meta.mttf.1024": "measured; 7.9 h is not the 28.8 h that 6.50 failures per 1,000 node-days give for 128 nodes",
    "rel.meta.rates": "two measured rates, the input of the projection",
    "rel.opt.paper": "counts of one run: 35 manual restarts, over 100 hosts cycled, 70 automatic restarts",
    "rel.opt.log": "counts of one run's log book, and not the same counts as the paper's",
    "rel.bloom": "observed: a GPU a week, 40 s a checkpoint; the 3 h at most lost are the 100 iterations of 105 s between",
    "rel.megascale": "observed: over 100 restarts, over 90 % repaired automatically",
    "rel.gemini.goodput": "observed goodput before and after in-memory replicas; write and restart times unpublished",
    "rel.checkfreq": "a bound that their controller enforces, not one that follows from inputs",
    "rel.gemini.sosp": "a measured speed-up of recovery",
    "rel.checknrun": "measured savings of quantized incremental checkpoints",
    "rel.bytecheckpoint": "a measured average reduction of checkpoint stalls",
    "rel.bamboo": "measured on preemptible instances against two different baselines",
    "rel.oobleck": "measured; version 1 of the paper prints 13.9, version 2 29.6",
    "rel.iea": "a forecast of the electricity use of data centres",
}
