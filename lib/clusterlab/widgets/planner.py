"""A job, a machine: its best plans and what the whole run takes, all choices computed before by :mod:`clusterlab.planning`."""

from html import escape

from ..hardware import node
from ..planning import BATCHES, DEVICES, GROUPS, RESERVE, SEQUENCES, USED, job, shares
from ..units import MiB, format_binary, format_bytes, format_seconds
from .base import Widget

FIELDS = ("tensor", "pipeline", "data", "context", "expert", "micro_batch", "virtual", "recompute", "zero_stage")
PUE = 1.2


def lighter(value):
    """A float with 12 digits: what a reader's browser gets."""
    return float(f"{value:.12g}")


def cell(name, machine, devices, batch):
    """One choice of the grid; None where the machine is larger than the job."""
    if devices % USED[machine]:
        return None
    found = job(name, machine, devices, batch)
    plans = [{"plan": [getattr(one.plan, field) for field in FIELDS], "step": lighter(one.estimate.step_seconds),
              "memory": lighter(one.estimate.memory.total), "mfu": lighter(one.estimate.mfu),
              "shares": [round(100 * share) for share in shares(one.estimate.breakdown).values()]}
             for one in (*found.plans, *filter(None, [found.wanted]))]
    wanted = plans.pop() if found.wanted else None
    made = {"plans": plans, "legal": found.legal, "too_large": found.too_large, "mtbf": lighter(found.mtbf),
            "interval": lighter(found.interval), "goodput": lighter(found.goodput), "wanted": wanted}
    if plans:
        made["binds"] = found.binds()
    else:
        made["why"] = (f"The leanest of {found.legal:,} plans needs {format_binary(found.leanest)} a GPU; it has "
                       f"{format_binary(found.cluster.accelerator.memory)}, less {format_bytes(RESERVE)} in reserve." if found.legal else
                       f"No plan keeps the rules: a batch of {batch // SEQUENCES[name]:,} sequences cannot be dealt to so many GPUs.")
    return made


class Planner(Widget):
    """Choose model, machine, GPUs and batch; enter tokens and a price."""

    module = "planner"

    def fallback(self):
        data = self.data
        middle, rows = len(data["devices"]) // 2, []
        for number, work in enumerate(data["models"]):
            for place, machine in enumerate(data["nodes"]):
                one = data["cells"][number][place][middle][0]
                told = "none fits"
                if one["plans"]:
                    first = one["plans"][0]
                    told = f"{_degrees(first['plan'])}: {format_seconds(first['step'])}, MFU {first['mfu']:.0%}; {one['binds']}"
                rows.append(f'<tr><th scope="row">{escape(work["name"])}</th><td>{escape(machine["name"])}</td><td>{escape(told)}</td></tr>')
        return (f"<p><strong>{escape(data['title'])}.</strong> {data['devices'][middle]} GPUs, {data['batches'][0] // MiB} Mi tokens "
                "a batch: the best plan, its step, and what binds.</p>\n<table><thead><tr><th>model</th><th>machine</th>"
                f"<th>best plan</th></tr></thead><tbody>{''.join(rows)}</tbody></table>")


def _degrees(plan):
    names = dict(zip(FIELDS, plan, strict=True))
    return " × ".join(f"{field} {names[field]}" for field in ("tensor", "pipeline", "data", "context") if names[field] > 1) or "one GPU"


def planner(key, *, models=tuple(SEQUENCES), nodes=tuple(USED), devices=DEVICES, batches=BATCHES):
    """The figure over a grid of choices, about 250 searches for the whole of it."""
    cells = [[[[cell(name, machine, count, batch) for batch in batches] for count in devices] for machine in nodes] for name in models]
    machines = []
    for machine in nodes:
        part = node(machine)
        machines.append({"name": machine, "accelerator": part.accelerator.name, "memory": part.accelerator.memory, "used": USED[machine],
                             "power": part.power and part.power / part.devices})
    return Planner(data={"key": key, "title": "The best plans for a job on a machine", "models": [{"name": name, "seq": SEQUENCES[name]} for name in models],
                         "nodes": machines, "devices": list(devices), "batches": list(batches), "fields": list(FIELDS),
                         "groups": list(GROUPS), "pue": PUE, "cells": cells})
