"""Exposed against overlapped communication of DDP, by bucket size: `python benchmarks/overlap.py`."""

from clusterlab.hardware import Link
from clusterlab.run.overlap import SHAPE, overlap
from clusterlab.units import MB, KiB, MiB, ms

if __name__ == "__main__":
    size = 4 * SHAPE.parameters()
    print(f"2 ranks, {size / MB:.1f} MB of FP32 gradients")
    print("link            bucket   buckets  compute   link busy  step      exposed   overlapped")
    for rate, latency in ((100 * MB, 0.0), (400 * MB, 0.0), (100 * MB, 4 * ms)):
        for bucket in (256 * KiB, 1 * MiB, 4 * MiB, 64 * MiB):
            r = overlap(2, Link("paced", rate, latency=latency), bucket_bytes=bucket)
            times = "".join(f"{t / ms:6.1f} ms " for t in (r.computation, r.communication, r.step, r.exposed, r.overlapped))
            print(f"{rate / MB:3.0f} MB/s {latency / ms:2.0f} ms  {bucket // KiB:6} KiB {r.buckets:4}   {times}")
