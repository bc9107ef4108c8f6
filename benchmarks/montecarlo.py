"""Seconds for 10,000 simulated runs of a 54-day job on 16,384 GPUs, and what part of it is drawing random numbers.

The yardstick is the draw itself: a run of this job meets about 470 failures, and no simulation that draws each of
them can be faster than numpy draws that many exponentials.
"""

from time import perf_counter

import numpy as np
from clusterlab.reliability import goodput, optimal_interval, simulate_goodput, system_mtbf
from clusterlab.units import day, hour, minute

RUNS = 10_000


def main():
    mtbf = system_mtbf(54 * day * 16_384 / 419, 16_384)  # 419 interruptions in 54 days, arXiv:2407.21783
    job = {"write": 30.0, "mtbf": mtbf, "restart": 10 * minute}
    interval = optimal_interval(job["write"], mtbf)
    start = perf_counter()
    result = simulate_goodput(interval, **job, runs=RUNS, seed=0)
    seconds = perf_counter() - start
    draws = int(RUNS * 54 * day / result / mtbf)
    start = perf_counter()
    np.random.default_rng(0).standard_exponential(draws)
    floor = perf_counter() - start
    print(f"MTBF {mtbf / hour:.2f} h, interval {interval / minute:.1f} min, {draws:,} failures drawn")
    print(f"simulated {result.low:.5f}..{result.high:.5f}, closed form {goodput(interval, **job):.5f}")
    print(f"{seconds:.3f} s; drawing alone {floor:.3f} s; ratio {seconds / floor:.1f}")


if __name__ == "__main__":
    main()
