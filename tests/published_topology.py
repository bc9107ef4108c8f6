"""How the library arrives at published figures of fabrics: fat trees, dragonflies, SuperPODs, the clusters of papers."""

from types import SimpleNamespace

from clusterlab.topology import clos, dragonfly, fat_tree, rail_only, superpod, torus
from published import reproduces

NOT_A_FORMULA = {
    "topo.railonly": "savings against a fat tree at prices and a switch choice that the abstract does not give; they "
                     "changed between versions of the paper",
    "topo.mem.colossus": "two announced counts of GPUs",
    "topo.selene": "a list of parts: eight adapters to compute, two to storage",
}


@reproduces("topo.fattree.k4", "topo.fattree.k8", "topo.fattree.k48", "topo.fattree.k64")
def fat_trees(row):
    tree = fat_tree(row["inputs"]["k"])
    return [tree.endpoints, tree.switches, tree.layout.tiers[-1], tree.cables]


@reproduces("topo.ds.ft2")
def two_tiers(row):
    tree = fat_tree(row["inputs"]["k"], tiers=2)
    return [tree.endpoints, tree.switches, tree.cables]


@reproduces("topo.ds.mpft")
def planes(row):
    k = row["inputs"]["k"]
    fabric = rail_only(k * k // 2, rails=row["inputs"]["planes"], radix=k)
    return [fabric.endpoints, fabric.switches, fabric.cables]


@reproduces("topo.ds.dragonfly")
def dragonfly_of_511_groups(row):
    inputs = row["inputs"]
    fabric = dragonfly(inputs["h"], p=inputs["p"], a=inputs["a"], groups=inputs["g"])
    return [fabric.endpoints, fabric.switches, fabric.cables]


@reproduces("topo.dragonfly.formula")
def balanced_dragonflies(row):
    return [dragonfly(h).endpoints for h in row["inputs"]["h"]]


@reproduces("topo.superpod.su1", "topo.superpod.su2", "topo.superpod.su4", "topo.superpod.su8")
def superpods(row):
    pod = superpod(row["inputs"]["su"])
    leaf, spine, *core = pod.layout.tiers
    return [pod.endpoints // 8, pod.endpoints, leaf, spine, sum(core)]


@reproduces("topo.meta24k", note="the ratio of 1:7 is an input: it is printed without the number of cables behind it")
def meta(row):
    inputs = row["inputs"]
    tiers = inputs["gpus_per_rack"], inputs["racks"], inputs["pods"]
    pod, cluster = clos(tiers[:2], (1, 16)), clos(tiers, (1, 16, 1))
    assert pod.layout.oversubscription == (1,)  # full bisection within a pod
    return [pod.endpoints, cluster.endpoints, None]


@reproduces("topo.hpn", note="in ports of 200 Gb/s, one plane; 8 of an aggregation switch's ports going up is an input")
def hpn(row):
    rails, segments, hosts = 8, 15, 128
    plane = clos((hosts, rails * segments, 1), (1, 60, 8), (1, 2, 1))
    leaf, above = plane.layout.ports[0], plane.layout.ports[1]
    return [leaf[0] / leaf[1], hosts * rails, plane.endpoints, plane.layout.tiers[1], above[0] / 2 / above[1]]


@reproduces("topo.h100.bisection", note="both directions are printed: 4 GPUs of 450 GB/s each way")
def nvswitch(row):
    nvlink = SimpleNamespace(bandwidth=450e9)
    return 2 * clos((8,), (1,)).bisection_bandwidth(nvlink) / 1e12


@reproduces("topo.mem.tpuocs", note="a cube's faces have 6 x 16 optical cables, and a switch joins 128 ends of them")
def optical_switches(row):
    cube = torus((4, 4, 4))
    cubes = 4096 // cube.endpoints
    inner = 3 * (4 - 1) * 4 * 4  # electrical, without the wrap-around
    faces = 2 * (cube.cables - inner)
    return [cube.endpoints, cubes, cubes * faces / 128]
