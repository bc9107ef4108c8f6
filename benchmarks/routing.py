"""Routing at scale: a ring, a random permutation and an all-to-all over 65,536 endpoints.

    python benchmarks/routing.py

prints seconds, and the load of the busiest cable in units of what one endpoint sends: 1 is what full rate allows.
"""

import time

from clusterlab.topology import dragonfly, fat_tree, rail_only, route, superpod, torus, traffic


def timed(name, call):
    start = time.perf_counter()
    value = call()
    print(f"  {name:<58}{time.perf_counter() - start:8.2f} s   busiest {value:8.2f}")
    return time.perf_counter() - start


def main():
    n = 65_536
    fabric = fat_tree(64)
    print(f"fat tree of radix 64: {fabric.endpoints} endpoints, {fabric.switches} switches, {fabric.cables} cables")
    seconds = 0.0
    for kind in ("ring", "permutation"):
        flows = traffic(kind, n, 1.0, seed=1)
        per_endpoint = float(flows.bytes.max())
        seconds += timed(f"{kind}, hashed per flow", lambda f=flows, b=per_endpoint: route(fabric, f).max / b)
    print(f"  ring and permutation hashed per flow: {seconds:.2f} s together (10 s allowed)")
    flows = traffic("permutation", n, 1.0, seed=1)
    timed("permutation, spread", lambda: route(fabric, flows, policy="adaptive").max)
    timed("halving-doubling, hashed", lambda: route(fabric, traffic("halving-doubling", n, 1.0)).max / (2 * (n - 1) / n))
    timed("all-to-all, expected load of its 4.3e9 flows", lambda: route(fabric, traffic("all-to-all", n, 1.0)).max)
    core = fabric.endpoints + fabric.switches - 1
    agg = next(int(u) for u, v in fabric.layout.cable_ends[::-1] if v == core)
    timed("permutation, hashed, one core cable down", lambda: route(fabric, flows, failed=[(agg, core)]).max)
    timed("permutation, spread, one core cable down",
          lambda: route(fabric, flows, policy="adaptive", failed=[(agg, core)]).max)
    print("others")
    for name, other in (("superpod of 64 units", superpod(64)), ("rail-only, 2,048 servers", rail_only(2048)),
                        ("dragonfly, h = 8", dragonfly(8)), ("torus 16 x 20 x 28", torus((16, 20, 28)))):
        size = other.endpoints
        flows = traffic("permutation", size, 1.0, seed=1)
        timed(f"{name} ({size}): permutation, hashed", lambda o=other, f=flows: route(o, f).max)
        timed(f"{name} ({size}): all-to-all", lambda o=other, s=size: route(o, traffic("all-to-all", s, 1.0)).max)


if __name__ == "__main__":
    main()
