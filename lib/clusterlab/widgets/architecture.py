"""The levels of machines beside each other, step by step, and what binds on a path: :mod:`clusterlab.levels`, by hand."""

import re
from html import escape

from ..levels import CACHES, PATHS, SLOTS, ladders, of_record
from ..transformer import model
from ..units import GB, KB, MB, TB, GiB, KiB, MiB, format_binary, format_bytes, format_rate, format_seconds
from .base import Widget

UNITS = (("B", 1.0), ("kB", KB), ("MB", MB), ("GB", GB), ("TB", TB), ("KiB", KiB), ("MiB", MiB), ("GiB", GiB),
         ("billion parameters × 4 B", 4e9), ("billion parameters × 2 B", 2e9), ("billion parameters × 1 B", 1e9),
         ("billion parameters × ½ B", 0.5e9))
MODELS = (("Llama 3.1 8B in bf16", "llama-3.1-8b"), ("Llama 3.1 70B in bf16", "llama-3.1-70b"),
          ("Llama 3.1 405B in bf16", "llama-3.1-405b"))
ON_CHIP = ("registers", "near", "l2", "l3", "memory")  # sizes in KiB, MiB, GiB
SHOWN = 1 * GB  # what the tables without script move


class Explorer(Widget):
    """Step from registers to an object store: capacity, bandwidth, latency, source, and the time a tensor takes."""

    module = "architecture"

    def fallback(self):
        tables = []
        for number, machine in enumerate(self.data["machines"]):
            rows = "".join(self._row(slot, label, machine) for label, slot in self.data["slots"] if slot in machine["tiers"])
            tables.append(
                f"<details{'' if number else ' open'}><summary>{escape(machine['name'])}: {escape(machine['says'])}</summary>"
                '<div class="clw-scroll" tabindex="0"><table><thead><tr><th scope="col">level</th><th scope="col">holds</th>'
                '<th scope="col">bandwidth</th><th scope="col">latency</th><th scope="col">1 GB takes</th>'
                f'<th scope="col">notes and sources</th></tr></thead><tbody>{rows}</tbody></table></div></details>')
        return f"<p><strong>{escape(self.data['title'])}.</strong> One table a machine.</p>\n" + "\n".join(tables)

    def _row(self, slot, label, machine):
        one, unknown = machine["tiers"][slot], machine["unknown"]
        size = format_binary if slot in ON_CHIP else format_bytes
        cells = [
            size(one["capacity"], 3) if one["capacity"] else one["holds"] or unknown,
            f"{format_rate(one['bandwidth'], 3)}, {one['counts']}" if one["bandwidth"] else unknown,
            format_seconds(one["latency"]) if one["latency"] else unknown,
            format_seconds(SHOWN / one["bandwidth"] + (one["latency"] or 0)) if one["bandwidth"] else unknown]
        if one["pair"]:
            cells[1] += f"; {format_rate(one['pair'], 3)} to one neighbour"
        name = one["name"] if one["name"] == label else f"{label}: {one['name']}"
        return (f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
                + f"<td>{one['told']}</td></tr>")


def architecture(key, *, records=(), first=("DGX H200", "MI300X Platform")):
    """The figure: the machines of `levels.ladders`, and one more for each of `records` (of `clusterlab.run.probes`).

    `first` are the one to three machines that stand there at the start. LookupError for one that is not there.
    """
    machines = [*ladders().values(), *map(of_record, records)]
    names = [machine.name for machine in machines]
    for name in first:
        if name not in names:
            raise LookupError(f"first: no machine {name!r}; there are {', '.join(names)}")
    none = len(names)
    presets = [["a tile of 128 × 64 in bf16", 16, 5], ["a bucket of gradients", 25, 6], ["a round size", 1, 3]]
    presets += [[label, round(model(name).parameters() / 1e9, 3), 9] for label, name in MODELS]
    return Explorer(data={
        "key": key, "title": "From registers to an object store", "machines": [_machine(one) for one in machines],
        "slots": [[name, slot] for slot, name in SLOTS.items()], "onChip": list(ON_CHIP), "caches": list(CACHES),
        "paths": [[name, list(slots)] for name, slots in PATHS.items()], "units": [list(one) for one in UNITS],
        "presets": presets, "start": [*([*map(names.index, first), none, none][:3]), 1, 3, 5, 1, 0, 4]})


def _machine(one):
    return {"name": one.name, "says": one.says, "unknown": one.unknown, "tiers": {
        slot: {"name": tier.name, "capacity": tier.capacity, "holds": tier.holds, "bandwidth": tier.bandwidth, "pair": tier.pair,
               "counts": tier.counts, "latency": tier.latency, "told": _told(tier)} for slot, tier in one.tiers.items()}}


def _told(tier):
    parts = [escape(tier.notes, quote=False)] if tier.notes else []
    same = tier.latency_source == tier.source
    if tier.source:
        parts.append(f"Source: {_linked(tier.source)}" + (f", {tier.date}" if tier.date else ""))
    if tier.latency_source and not same:
        parts.append(f"Latency: {_linked(tier.latency_source)}, {tier.latency_date}")
    return "".join(f"{part[0].upper()}{part[1:]}. " for part in parts).strip()


def _linked(source):
    """A source as a link on its name: what stands before the address."""
    found = re.search(r"https?://\S+", source) or re.search(r"arXiv:(\S+)", source)
    if not found:
        return escape(source, quote=False)
    address = found[0] if found[0].startswith("http") else f"https://arxiv.org/abs/{found[1]}"
    name = source[:found.start()].rstrip(" ,;") or address
    return f'<a href="{escape(address)}">{escape(name, quote=False)}</a>'
