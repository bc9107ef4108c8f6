"""One real training step as a timeline: ranks note when each phase and each bucket began and ended.

    python -m clusterlab.run.step_record          records this machine into lessons/measurements/step.json (minutes)

A thread of each rank sums full buckets by ring over paced ports, while the backward pass computes the next ones, as
DDP's reducer does. A slow rank is one with more sequences than the others.
"""

import argparse
import datetime
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from clusterlab.iteration import Event, Iteration, Work
from clusterlab.run.allreduce import ring
from clusterlab.run.device import describe, device, synchronize
from clusterlab.run.links import Paced
from clusterlab.run.model import Decoder, token_losses
from clusterlab.run.probes import folder
from clusterlab.run.ranks import launch
from clusterlab.transformer import Transformer

SHAPE = Transformer(layers=8, hidden=192, heads=4, vocab=256, ffn=512, gated=True)
BUCKETS = (1e6, 5e6, None)
PHASES = ("load", "forward", "loss", "backward", "optimizer")
COMMAND = "python -m clusterlab.run.step_record"


class Buckets:
    """Gradients in buckets of at least `size` bytes, the last layer's first; each is averaged over all ranks."""

    def __init__(self, weights, size, pool):
        self.groups, held, self.pool = [[]], 0, pool
        for weight in reversed(weights):
            if size and held >= size:
                self.groups, held = [*self.groups, []], 0
            self.groups[-1].append(weight)
            held += weight.nbytes
        self.home = {weight: group for group in self.groups for weight in group}
        self.missing, self.sent = {}, []

    def start(self):
        self.missing, self.sent = {id(group): len(group) for group in self.groups}, []

    def arrived(self, weight):
        """A weight's gradient is there; the bucket it completes leaves."""
        group = self.home[weight]
        self.missing[id(group)] -= 1
        if not self.missing[id(group)]:
            self.sent.append(self.pool.submit(self.average, group))

    def average(self, group):
        start = time.monotonic()
        flat = torch.cat([weight.grad.view(-1) for weight in group])
        ring(flat)
        flat /= dist.get_world_size()
        for weight, part in zip(group, flat.split([weight.numel() for weight in group]), strict=True):
            weight.grad.copy_(part.view_as(weight))
        return start, time.monotonic()

    def wait(self):
        """(start, end) of each bucket."""
        return [sent.result() for sent in self.sent]


def rank_work(settings, batch, seq, laps):
    """On a rank, for each (bucket, overlap, slow) of `settings` the (kind, number, start, end) of its laps; bucket 0: no sum."""
    torch.manual_seed(0)
    model, most = Decoder(SHAPE).to(device()), max(round(batch * slow) for *_, slow in settings)
    weights = list(model.parameters())
    update, end = torch.optim.AdamW(weights), time.monotonic
    with tempfile.NamedTemporaryFile() as file, ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        torch.randint(SHAPE.vocab, (most * (seq + 1),), dtype=torch.uint8).numpy().tofile(file.name)
        every = {size: Buckets(weights, size, pool) for size, *_ in settings if size != 0}
        now = None
        for weight in weights:
            weight.register_post_accumulate_grad_hook(lambda weight: now and now.arrived(weight))

        def lap(setting):
            nonlocal now
            size, overlap, slow = setting
            buckets, own = every.get(size), round(batch * slow) if dist.get_rank() else batch
            now = buckets if overlap else None
            update.zero_grad()
            if buckets:
                buckets.start()
            marks = [_common_start()]
            text = torch.from_file(file.name, size=own * (seq + 1), dtype=torch.uint8).long().view(own, -1).to(device())
            marks.append(end())
            logits = model(text[:, :-1])
            synchronize()
            marks.append(end())
            loss = token_losses(logits, text[:, 1:]) / text[:, 1:].numel()
            synchronize()
            marks.append(end())
            loss.backward()
            synchronize()
            marks.append(end())
            if buckets and not now:
                for weight in reversed(weights):
                    buckets.arrived(weight)
            syncs = buckets.wait() if buckets else []
            begin = end()
            update.step()
            synchronize()
            times = [*zip(PHASES[:4], marks[:4], marks[1:], strict=True), ("optimizer", begin, end())]
            events = [(kind, 0, a, b) for kind, a, b in times] + [("sync", k, a, b) for k, (a, b) in enumerate(syncs)]
            return [(kind, k, a - marks[0], b - marks[0]) for kind, k, a, b in events]

        found = {setting: [] for setting in settings}
        for _ in range(laps + 2):
            for setting, kept in found.items():
                kept.append(lap(setting))
        return {setting: kept[2:] for setting, kept in found.items()}


def _common_start():
    """A moment that all ranks of this host agree on, and wait for."""
    moment = torch.tensor(time.monotonic(), dtype=torch.float64)
    dist.all_reduce(moment, op=dist.ReduceOp.MAX)
    time.sleep(max(0.0, moment.item() + 0.002 - time.monotonic()))
    return moment.item() + 0.002


def record(*, link=None, laps=30, batch=5, seq=64, buckets=BUCKETS):
    """Two ranks, alike and with rank 1 having a fifth more to do: the record that `main` stores.

    `phases`: of each rank the seconds in the fastest lap without any sum; `rows`: for each bucket (bytes, or None for all
    at once), overlap and slow factor the seconds and events of the fastest lap, beside the median and the slowest;
    `backward`: the median seconds of that pass, in rows and (without any sum) of the record. All settings take turns, so
    that a busy moment of the machine hits them alike.
    """
    link = link or Paced(bandwidth=200e6, latency=0.2e-3)
    alone = (0, False, 1.0)
    settings = [alone, *((size, overlap, slow) for slow in (1.0, 1.2) for size in buckets for overlap in (True, False))]
    busy = round(os.getloadavg()[0] / (os.cpu_count() or 1), 1) if hasattr(os, "getloadavg") else None
    ranks = launch(rank_work, 2, settings, batch, seq, laps, link=link)
    rows = []
    for setting in settings:
        pairs = list(zip(*(rank[setting] for rank in ranks), strict=True))
        steps = [max(event[3] for one in pair for event in one) for pair in pairs]
        rows.append({**dict(zip(("bucket", "overlap", "slow"), setting, strict=True)), "seconds": min(steps),
                     "median": statistics.median(steps), "highest": max(steps), "backward": statistics.median(
                         end - start for pair in pairs for one in pair for kind, _, start, end in one if kind == "backward"),
                     "events": _together(pairs[steps.index(min(steps))])})
    phases = [{kind: end - start for rank, kind, _, start, end in rows[0]["events"] if rank == one} for one in range(2)]
    return {"what": "a training step of two ranks, gradients summed by ring over paced ports", **describe(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "busy": busy, "command": COMMAND,
            "ranks": 2, "batch": batch, "seq": seq, "laps": laps, "unit": "s", "parameters": SHAPE.parameters(),
            "bandwidth": link.bandwidth, "latency": link.latency, "phases": phases, "backward": rows[0]["backward"],
            "rows": rows[1:]}


def _together(pair):
    """Events [rank, kind, number, start, end]; a bucket is under way once all ranks have begun it."""
    begun = {}
    for one in pair:
        for kind, number, start, _ in one:
            if kind == "sync":
                begun[number] = max(start, begun.get(number, 0.0))
    return [[rank, kind, number, round(begun[number] if kind == "sync" else start, 6), round(end, 6)]
            for rank, one in enumerate(pair) for kind, number, start, end in one]


def load(path=None):
    """The stored record."""
    return json.loads((path or folder() / "step.json").read_text("utf-8"))


def work_of(found):
    """What :func:`clusterlab.iteration.unfold` needs to predict the steps of a record: its phases, and the link."""
    n, phases = found["ranks"], found["phases"]
    return Work(load=max(one["load"] for one in phases), micro_batches=1,
                gradients=(4.0 * found["parameters"],) * n,
                **{kind: tuple(one[kind] for one in phases) for kind in ("forward", "loss", "backward", "optimizer")},
                latency=2.0 * (n - 1) * found["latency"], per_byte=2.0 * (n - 1) / n / found["bandwidth"])


def iteration_of(row, ranks=2):
    """A recorded step as an :class:`~clusterlab.iteration.Iteration`."""
    return Iteration(row["seconds"], tuple(Event(*event) for event in row["events"]), ranks, 0.0)


def shown(found):
    """A record as the timeline's figure wants it."""
    rows = [{**row, "ranks": found["ranks"]} for row in found["rows"]]
    link = f"{found['bandwidth'] / 1e6:.0f} MB/s and {found['latency'] * 1e6:.0f} µs paced"
    return {"says": f"{found['parameters'] / 1e6:.1f} million parameters on two CPU ranks, {link}",
            "recorded": f"{found['device']}, {found['cores']} cores, torch {found['torch']}, {found['date']}",
            "work": work_of(found), "rows": rows}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="clusterlab.run.step_record", description=__doc__.splitlines()[0])
    parser.add_argument("--where", help="file; default: lessons/measurements/step.json")
    options = parser.parse_args(argv)
    path = options.where or folder() / "step.json"
    found = record()
    rows = [json.dumps(row) for row in found.pop("rows")]
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(found, indent=1)[:-2] + ',\n "rows": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n")
    print("wrote", path)


if __name__ == "__main__":
    main()
