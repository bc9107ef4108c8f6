"""The worksheet: from a workload and a machine to the lines on which one decides, and their text to take away.

workload → memory → parallelism → devices → interconnect → storage → time, energy and price. Each line is one call of
the library; :func:`worksheet` only makes them in this order, for the best plans that :func:`clusterlab.planning.best`
finds.
"""

import csv
import dataclasses
import io
from typing import NamedTuple

from clusterlab.compute import training_flops
from clusterlab.hardware import Cluster, link
from clusterlab.hardware import node as catalogued
from clusterlab.memory import MIXED_16
from clusterlab.planning import DEVICE_MTBF, RESERVE, RESTART, STORAGE, best
from clusterlab.reliability import expected_failures, goodput, optimal_interval, system_mtbf
from clusterlab.training import Estimate
from clusterlab.transformer import model as published
from clusterlab.units import day, format_bytes, format_flops, format_seconds, hour

KWH = 3.6e6  # joules


@dataclasses.dataclass(frozen=True)
class Choice:
    """One plan of a worksheet, and the whole run by it. Seconds, bytes, joules; None: not published.

    ``busy`` is the run without interruptions, ``seconds`` with them. The estimate is as predicted; ``step_seconds``,
    ``tokens_per_second`` and ``mfu`` are what ``reached`` makes of it.
    """

    plan: object
    estimate: Estimate
    step_seconds: float
    tokens_per_second: float
    mfu: float
    steps: float
    busy: float
    seconds: float
    interruptions: float
    device_hours: float
    energy: float | None
    cost: float | None


class Line(NamedTuple):
    """One line: its name, its unit (empty for a count or a text), the values, one a choice, and the same to read."""

    name: str
    unit: str
    values: tuple
    shown: tuple


@dataclasses.dataclass(frozen=True)
class Worksheet:
    """What :func:`worksheet` found: inputs, what all plans share, and ``choices``, fastest first.

    ``checkpoint`` bytes take ``write`` seconds; work ``interval`` seconds between two of them; failures every ``mtbf``
    seconds leave the share ``goodput``. ``binds`` is what stands in the way of a shorter step, empty if no plan fits
    (:meth:`clusterlab.planning.Outcome.binds`). ``legal`` counts the plans that keep all rules, ``too_large`` those of
    them that do not fit, ``leanest`` is the least memory that any of them needs, bytes.
    """

    model: str
    cluster: Cluster
    tokens: float
    global_batch: int
    seq: int
    price: float | None
    flops: float
    checkpoint: float
    write: float
    mtbf: float
    interval: float
    goodput: float
    binds: str
    legal: int
    too_large: int
    leanest: float
    choices: tuple

    def lines(self):
        """All lines, in the order in which one decides: a list of :class:`Line`."""
        found, choices = [], self.choices

        def line(name, unit, value, show):
            values = tuple(value(choice) for choice in choices)
            found.append(Line(name, unit, values, tuple("-" if v is None else show(v) for v in values)))

        def shared(name, unit, value, show):
            line(name, unit, lambda _: value, show)

        shared("tokens", "", self.tokens, lambda v: f"{v / 1e9:.4g} B")
        shared("FLOP", "FLOP", self.flops, lambda v: format_flops(v, 3))
        for part in ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "total"):
            line(part, "B", lambda c, part=part: getattr(c.estimate.memory, part) + 0.0, lambda v: format_bytes(v, 3))
        for degree in ("tensor", "pipeline", "context", "expert", "data"):
            line(degree, "", lambda c, degree=degree: getattr(c.plan, degree), str)
        line("micro-batch", "", lambda c: c.plan.micro_batch, str)
        line("recompute", "", lambda c: c.plan.recompute, str)
        line("ZeRO stage", "", lambda c: c.plan.zero_stage, str)
        line("step", "s", lambda c: c.step_seconds, format_seconds)
        line("tokens/s", "1/s", lambda c: c.tokens_per_second, lambda v: f"{v:,.0f}")
        line("MFU", "", lambda c: c.mfu, lambda v: f"{v:.1%}")
        shared("binds", "", self.binds, str)
        shared("checkpoint", "B", self.checkpoint, lambda v: format_bytes(v, 3))
        shared("its write", "s", self.write, format_seconds)
        shared("save every", "s", self.interval, format_seconds)
        line("interruptions", "", lambda c: c.interruptions, lambda v: f"{v:.2g}")
        shared("goodput", "", self.goodput, lambda v: f"{v:.2%}")
        line("time", "s", lambda c: c.seconds, lambda v: f"{v / day:.3g} days")
        line("GPU-hours", "h", lambda c: c.device_hours, lambda v: f"{v:,.0f}")
        line("energy", "J", lambda c: c.energy, lambda v: f"{v / KWH / 1e3:.3g} MWh")
        line("cost", "", lambda c: c.cost, lambda v: f"{v:,.0f}")
        return found

    def markdown(self, keep=None):
        """The worksheet as a Markdown table with one column a plan; ``keep`` limits them to the best ones.

        Names are padded, so that the text reads as a table too.
        """
        kept = self.choices[:keep]
        rows = [("", *(f"plan {number}" for number, _ in enumerate(kept, start=1)))]
        rows += [(one.name, *one.shown[:keep]) for one in self.lines()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        rows.insert(1, tuple("-" * (width - 1) + ":" * (column > 0) + "-" * (column == 0)
                             for column, width in enumerate(widths)))
        text = ["| " + " | ".join([f"{name:{widths[0]}}", *(f"{cell:>{width}}" for cell, width in
                                                           zip(cells, widths[1:], strict=True))]) + " |"
                for name, *cells in rows]
        network = f"{self.cluster.node.nics} × {self.cluster.node.nic.name}" if self.cluster.node.nic else "none"
        head = [f"{self.model} on {self.cluster.nodes} × {self.cluster.node.name}",
                f"network ports a node: {network}",
                f"batch {self.global_batch} × {self.seq:,} tokens",
                f"{self.legal:,} legal plans, {self.too_large:,} do not fit"]
        return "\n".join([*head, "", *(text if kept else ["no plan fits"])]) + "\n"

    def csv(self):
        """The worksheet as CSV: name, unit, and the unrounded value of each plan in SI units."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["line", "unit", *(f"plan {number}" for number, _ in enumerate(self.choices, start=1))])
        writer.writerows([one.name, one.unit, *("" if value is None else value for value in one.values)]
                         for one in self.lines())
        return out.getvalue()


def networked(node, nic, nics):
    """The node with ``nics`` network ports of the link ``nic`` in place of its own; all else, its power too, as it was.

    >>> networked("DGX H100", "Ethernet 100G", 1).network_bandwidth / 1e9
    12.5
    """
    node = catalogued(node) if isinstance(node, str) else node
    return dataclasses.replace(node, nic=link(nic) if isinstance(nic, str) else nic, nics=nics)


def worksheet(model, node, *, tokens, devices, global_batch, seq, price=None, reached=1.0, reserve=RESERVE,
              storage=STORAGE, restart=RESTART, device_mtbf=DEVICE_MTBF, pue=1.2, keep=2, oversubscription=1.0,
              **fixed):
    """Fill the worksheet of a job on ``devices`` devices of whole nodes: a :class:`Worksheet`.

    model, node  names from the catalogue, or your own Transformer and Node
    price        of a device-hour, in any currency; None leaves the line empty
    reached      share of the predicted tokens a second that *your* software reaches: measure it in a pilot run
    reserve      bytes of a device that the sum of memory leaves out: context, buffers of collectives, fragmentation
    storage      bytes/s that each host writes of a checkpoint (weight, master and moments of every parameter)
    restart      seconds from a failure to the first new step; device_mtbf: between failures of one device
    pue          facility's power over the machines'; energy is the nodes' rated power all the time, an upper bound
    keep         plans to show, of those with equal degrees only the fastest; ``fixed`` goes to training.search

    steps = tokens / (global_batch · seq);  busy = tokens / (reached · tokens a second);  seconds = busy / goodput;
    interruptions = seconds / mtbf;  cost = price · devices · hours. No plan fits: ``choices`` is empty, ``leanest``
    says what the least would need. Raises ValueError for nodes in part and for impossible values.

    >>> sheet = worksheet("llama-3-8b", "DGX H100", tokens=100e9, devices=16, global_batch=512, seq=8192, price=3.0)
    >>> best = sheet.choices[0]
    >>> best.plan.data, sheet.binds, f"{best.seconds / 86400:.1f} days"
    (16, 'arithmetic', '5.9 days')
    """
    shape, name = (published(model), model) if isinstance(model, str) else (model, "own model")
    node = catalogued(node) if isinstance(node, str) else node
    if devices < 1 or devices % node.devices:
        raise ValueError(f"devices={devices!r}: must be whole nodes of {node.devices} devices")
    rules = {f"tokens={tokens!r}, storage={storage!r}: must be above 0": tokens > 0 and storage > 0,
             f"reached={reached!r}: must be above 0 and at most 1": 0 < reached <= 1,
             f"reserve={reserve!r}: must be from 0, and less than the device's memory":
                 0 <= reserve < node.accelerator.memory,
             f"pue={pue!r}: must be at least 1": pue >= 1,
             f"price={price!r}: must be at least 0, or None": price is None or price >= 0}
    for rule, kept in rules.items():
        if not kept:
            raise ValueError(rule)
    cluster = Cluster(node, devices // node.devices, oversubscription)
    usable = dataclasses.replace(node.accelerator, memory=node.accelerator.memory - reserve)
    found = best(shape, dataclasses.replace(cluster, node=dataclasses.replace(node, accelerator=usable)),
                 global_batch=global_batch, seq=seq, keep=keep, **fixed)
    recipe = fixed.get("recipe", MIXED_16)
    checkpoint = shape.parameters() * (recipe.weight + recipe.master + recipe.moments)
    write, mtbf = checkpoint / (storage * cluster.hosts), system_mtbf(device_mtbf, devices)
    interval = optimal_interval(write, mtbf)
    useful = goodput(interval, write=write, mtbf=mtbf, restart=restart)
    choices = []
    for plan, step in found.plans:
        rate = reached * step.tokens_per_second
        seconds = tokens / rate / useful
        hours = devices * seconds / hour
        choices.append(Choice(
            plan, step, step.step_seconds / reached, rate, reached * step.mfu, tokens / (global_batch * seq),
            tokens / rate, seconds, expected_failures(seconds, device_mtbf, devices), hours,
            None if node.power is None else pue * node.power * cluster.nodes * seconds,
            None if price is None else price * hours))
    return Worksheet(name, cluster, tokens, global_batch, seq, price,
                     training_flops(shape, batch=1, seq=seq) * tokens / seq, checkpoint, write, mtbf, interval, useful,
                     found.binds() if choices else "", found.legal, found.too_large, found.leanest, tuple(choices))
