"""What a checkpoint costs, blocking, in the background and in memory, beside writing and hashing alone:
`python benchmarks/checkpoint.py`.

The peers: one process that writes the same bytes to one file and forces it to disk, and SHA-256 of them in memory.
"""

import hashlib
import os
import statistics
import tempfile
import time

import torch
from clusterlab.run import checkpoint
from clusterlab.run.background import Background
from clusterlab.run.job import Job, Training
from clusterlab.run.peers import Peers
from clusterlab.run.ranks import launch
from clusterlab.transformer import Transformer
from clusterlab.units import MB

SHAPE = Transformer(layers=4, hidden=384, heads=8, vocab=2048, ffn=1024, gated=True)
REPEATS = 3


def costs(root, job):
    """Seconds and bytes of one rank: {kind: (bytes, seconds blocked, seconds in all)}, medians."""
    training, background, peers = Training(job), Background(os.path.join(root, "background")), Peers()
    training.step()
    found = {"storage": [], "storage, verified": [], "background": [], "memory": [], "load": []}
    for k in range(1, REPEATS + 1):
        for name, verify in (("storage", False), ("storage, verified", True)):
            saved = checkpoint.save(os.path.join(root, name), k, training.state, verify=verify)
            found[name].append((saved.written, saved.blocked, saved.seconds))
        background.save(k, training.state)
        saved = background.wait()
        found["background"].append((saved.written, saved.blocked, saved.seconds))
        copied = peers.save(k, training.state)
        found["memory"].append((copied.sent, copied.seconds, copied.seconds))
        start = time.perf_counter()
        checkpoint.load(os.path.join(root, "storage"), training.state)
        found["load"].append((saved.written, time.perf_counter() - start, time.perf_counter() - start))
    return saved.state, {name: tuple(map(statistics.median, zip(*rows, strict=True))) for name, rows in found.items()}


def alone(root, size):
    """Seconds to write `size` bytes to one synced file, and to hash them."""
    data, path = torch.randint(256, (size,), dtype=torch.uint8).numpy().tobytes(), os.path.join(root, "file")
    start = time.perf_counter()
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    written = time.perf_counter()
    hashlib.sha256(data).hexdigest()
    return written - start, time.perf_counter() - written


if __name__ == "__main__":
    for strategy in ("ddp", "fsdp"):
        with tempfile.TemporaryDirectory() as folder:
            state, rows = launch(costs, 4, folder, Job(SHAPE, strategy=strategy), timeout=120)[0]
            write, digest = alone(folder, state)
        print(f"{strategy}, 4 ranks, {SHAPE.parameters() / 1e6:.1f} M parameters, state {state / MB:.1f} MB; "
              f"one process writes it in {write:.2f} s, hashes it in {digest:.2f} s")
        for name, (size, blocked, seconds) in rows.items():
            print(f"  {name:18} {size / MB:7.1f} MB a rank   blocked {blocked:5.2f} s   in all {seconds:5.2f} s "
                  f"({seconds / (write + digest):4.1f} of write and hash alone)")
