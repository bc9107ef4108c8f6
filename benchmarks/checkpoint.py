"""What a checkpoint costs, blocking, in the background and in memory: `python benchmarks/checkpoint.py`.

The peer: one process that writes the same bytes to one file, forces it to disk, and takes SHA-256 of them.
"""

import hashlib
import os
import tempfile
import time

from clusterlab.run.checkpointing import costs
from clusterlab.run.job import Job
from clusterlab.transformer import Transformer
from clusterlab.units import MB

SHAPE = Transformer(layers=4, hidden=384, heads=8, vocab=2048, ffn=1024, gated=True)


def alone(size):
    """Seconds to write `size` bytes to one synced file, and to hash them."""
    data = os.urandom(size)
    with tempfile.TemporaryDirectory() as root:
        start = time.perf_counter()
        with open(os.path.join(root, "file"), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        written = time.perf_counter() - start
    start = time.perf_counter()
    hashlib.sha256(data).hexdigest()
    return written, time.perf_counter() - start


if __name__ == "__main__":
    for strategy in ("ddp", "fsdp"):
        state, rows = costs(4, job=Job(SHAPE, strategy=strategy))
        write, digest = alone(state)
        print(f"{strategy}, 4 ranks, {SHAPE.parameters() / 1e6:.1f} M parameters, state {state / MB:.1f} MB; "
              f"one process writes it in {write:.2f} s, hashes it in {digest:.2f} s")
        for row in rows:
            print(f"  {row.kind:18} {row.bytes / MB:6.1f} MB a rank   blocked {row.blocked:5.2f} s   behind "
                  f"{row.behind:5.2f} s   {(row.blocked + row.behind) / (write + digest):4.1f} of write and hash alone")
