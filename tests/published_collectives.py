"""How the library arrives at published figures of collectives: nccl-tests, NCCL's tuning constants, MPICH's costs."""

from types import SimpleNamespace

from clusterlab import nccl
from clusterlab.collectives import bandwidth_bound, bus_factor, busbw, bytes_sent, collective_seconds
from published import reproduces

NOT_A_FORMULA = {
    "coll.nccl24": "measured on a whole machine with NCCL 2.4, whose constants are not these; the reason, 2(n-1) steps "
                   "against 2 log2 n, is the table's",
    "coll.meas.a100.8": "measured; the bound of ring, 300, and that no row passes its bound are tested",
    "coll.meas.h200.8.nvls": "measured; above ring's bound of 450 and below nvls's of 700, which is tested",
    "coll.meas.h100.8.nvls": "measured; above ring's bound of 450 and below nvls's of 700, which is tested",
    "coll.meas.b200.8.nvls": "measured; nvls's bound is 1,400",
    "coll.meas.mi300x.8": "measured on a full mesh of seven links; no constant for their efficiency is published",
}

RANKS = (2, 3, 8, 64, 1000)


def _printed(formula, names):
    """The value of a formula as printed: 2(n-1)/n or 2lgp*a."""
    for short, long in (("2(", "2*("), ("2lgp", "2*lgp"), ("2n(", "2*n*("), ("n((", "n*(("), (")b", ")*b"), (")g", ")*g")):
        formula = formula.replace(short, long)
    return eval(formula, {"__builtins__": {}}, names)


@reproduces("coll.busbw.all_reduce", "coll.busbw.reduce_scatter", "coll.busbw.all_gather", "coll.busbw.broadcast",
            "coll.busbw.reduce", "coll.busbw.alltoall", kind="definition", rel=1e-12,
            note="the printed formula, evaluated as a float",
            value=lambda row: [_printed(row["value"], {"n": n}) for n in RANKS])
def bus_factors(row):
    return [bus_factor(row["id"].rsplit(".", 1)[1], n) for n in RANKS]


@reproduces("coll.patarasuk", rel=1e-12, note="the printed formula, evaluated as a float",
            value=lambda row: [_printed(row["value"].lower(), {"n": n}) for n in RANKS])
def least_bytes(row):
    """The bound of the theorem, and ring, which attains it."""
    link = SimpleNamespace(bandwidth=1.0, latency=0.0)
    bounds = [bandwidth_bound("all-reduce", 1.0, n, link) for n in RANKS]
    assert all(abs(bound - bytes_sent("ring", 1.0, n)) < 1e-12 for bound, n in zip(bounds, RANKS, strict=True))
    return bounds


COSTS = {"a": 3e-6, "b": 1e-9, "g": 1e-10, "n": 1e6}
POWERS = (2, 8, 1024)


@reproduces("coll.thakur.rabenseifner", "coll.thakur.bcast", rel=1e-12, note="the printed formula, evaluated as a float",
            value=lambda row: [_printed(row["value"], COSTS | {"p": p, "lgp": p.bit_length() - 1}) for p in POWERS])
def mpich(row):
    operation = "broadcast" if row["id"].endswith("bcast") else "all-reduce"
    link = SimpleNamespace(bandwidth=1 / COSTS["b"], latency=COSTS["a"])
    return [collective_seconds(operation, COSTS["n"], p, link, algorithm="halving-doubling", gamma=COSTS["g"])
            for p in POWERS]


@reproduces("coll.nccl.baselat", kind="definition")
def base_latencies(row):
    return nccl.constants()["base_latency"]


@reproduces("coll.nccl.hwlat", kind="definition")
def hop_latencies(row):
    hops = nccl.constants()["hop_latency"]
    return {kind: {name: hops[kind][name] for name in row["value"][kind]} for kind in row["value"]}


@reproduces("coll.nccl.llmax", kind="definition")
def ll_limits(row):
    return nccl.constants()["max_bandwidth"]["ll"]


@reproduces("coll.nccl.perch", kind="definition")
def channel_limits(row):
    return {"ringLL128": [row[0] for row in nccl.constants()["max_bandwidth"]["channel"]["ring_ll128"]]}


@reproduces("coll.nccl.factors", kind="definition")
def factors(row):
    factor = nccl.constants()["factor"]
    return {"nvls_eff": {"hopper": factor["nvls_hopper"], "blackwell": factor["nvls_blackwell"]}}


@reproduces("coll.nccl.treecorr", kind="definition")
def tree_correction(row):
    return nccl.constants()["tree_correction"]["Simple"]


@reproduces("coll.nccl.linkbw", kind="definition")
def link_bandwidths(row):
    return nccl.constants()["link_bandwidth"]


@reproduces("coll.nccl.ringlat", rel=1e-9, note="equal but for the last bits of a float")
def ring_latencies(row):
    comm = nccl.Communicator(ranks=row["inputs"]["n"], nodes=row["inputs"]["nodes"], compute_capability=90, channels=16,
                             channel_bandwidth=20.6e9)
    table = nccl.nccl_table(comm)
    return [table["Ring", protocol][0] * 1e6 for protocol in nccl.PROTOCOLS]


LINKS = "links of the GPU times NCCL's own bandwidth of one NVLink; {}"


@reproduces("coll.meas.h200.8.ring", rel=0.01, note=LINKS.format("within 1 %"))
@reproduces("coll.meas.h200.ag", "coll.meas.h200.rs", rel=0.03, note=LINKS.format("all-gather and reduce-scatter are 2.5 % lower"))
def hopper_ring(row):
    return 18 * nccl.constants()["link_bandwidth"]["SM90"]


@reproduces("coll.meas.b200.8.ring", rel=0.06, note=LINKS.format("8 GiB does not reach it: 5.8 % lower"))
def blackwell_ring(row):
    return 18 * nccl.constants()["link_bandwidth"]["SM100"]


@reproduces("coll.sharp", abs=1.0, note="370 is 18 links at 20.6 GB/s; the others are measured peaks")
def hopper_without_sharp(row):
    return [18 * nccl.constants()["link_bandwidth"]["SM90"], None, None, None]


@reproduces("coll.h200.curve.16777216", "coll.h200.curve.17179869184", kind="definition")
def busbw_of_algbw(row):
    size, ranks = row["inputs"]["bytes"], row["inputs"]["n"]
    return [busbw("all-reduce", size, ranks, size / row["value"][1]), None]


@reproduces("coll.scalingbook.ag",
            note="their formulas drop (n-1)/n, as for many ranks, and count both directions of each axis' ring")
def scaling_book(row):
    many = 10**9
    one_axis, two_axes = (SimpleNamespace(bandwidth=axes * row["inputs"]["W"], latency=0.0) for axes in (1, 2))
    return [1e6 * bandwidth_bound("all-gather", row["inputs"]["bytes"], many, two_axes),
            1e6 * bandwidth_bound("all-reduce", row["inputs"]["bytes"], many, one_axis)]
