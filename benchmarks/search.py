"""Seconds to rank every legal plan of a 405B model on 16,384 H100s, and what one plan at a time would take.

The yardstick is the loop that arrays replace: the same estimate called plan by plan.
"""

from time import perf_counter

from clusterlab.hardware import Cluster, node
from clusterlab.training import estimate, search
from clusterlab.transformer import model

SAMPLE = 100


def main():
    work, cluster = model("llama-3.1-405b"), Cluster(node("DGX H100"), 2048)
    search(work, cluster, global_batch=2048, seq=8192, tensor=8, pipeline=16)  # tables read, caches warm
    start = perf_counter()
    found = search(work, cluster, global_batch=2048, seq=8192)
    seconds = perf_counter() - start
    print(f"{len(found):,} legal plans of {len(found) + sum(found.rejected.values()):,} in {seconds:.2f} s; left out:")
    for rule, count in found.rejected.items():
        print(f"  {count:>9,}  {rule}")
    plans = [found[index].plan for index in range(0, len(found), max(1, len(found) // SAMPLE))]
    start = perf_counter()
    for plan in plans:
        estimate(work, cluster, plan)
    single = (perf_counter() - start) / len(plans)
    print(f"one plan at a time: {single * 1e3:.1f} ms each, {single * len(found):.1f} s for the legal ones; "
          f"ratio {single * len(found) / seconds:.0f}")
    plan, step = found[0]
    print(f"fastest: {step.step_seconds:.2f} s, MFU {step.mfu:.1%}, {step.memory.total / 1e9:.0f} GB, {plan}")


if __name__ == "__main__":
    main()
