"""The hardware catalogue: what :mod:`clusterlab.hardware` knows, as tables that can be sorted.

``catalogue("accelerators")`` shows a table, and its `notes` what stands behind each row: source, date, where sources
differ. Units stand in the heads; a dash means that the maker publishes no value. Rates of links count one direction,
peaks are dense.
"""

import html
import re
from dataclasses import dataclass

from .. import hardware, transformer
from ..units import GB, TB, TFLOP, GiB, format_binary, format_bytes
from .base import Widget

MISSING = "–"


@dataclass(frozen=True)
class Entry:
    """One row: the part's name, its cells as text, and what is told about it, its source and date."""

    name: str
    cells: tuple
    told: tuple = ()
    source: str = ""
    date: str = ""


class Notes:
    """Sources, dates and notes of a table's rows: a folded list to which the names in the table lead."""

    def __init__(self, key, entries):
        self.key, self.entries = key, entries

    def __repr__(self):
        return f"{len(self.entries)} notes"

    def _repr_html_(self):
        told = "\n".join(f'<dt id="{_anchor(self.key, one.name)}">{html.escape(one.name)}</dt><dd>{_told(one)}</dd>'
                         for one in self.entries)
        return (f'<details class="catalogue"><summary>Sources, dates and notes ({len(self.entries)})</summary>\n'
                f"<dl>\n{told}\n</dl>\n</details>")


class Table(Widget):
    """Rows of parts under heads; a head is a button that sorts."""

    module = "catalogue"

    def __init__(self, name, heads, entries):
        self.notes = Notes(name, entries)
        rows = [[one.name, *one.cells] for one in entries]
        anchors = [_anchor(name, one.name) if one.source else "" for one in entries]
        super().__init__(data={"key": f"catalogue/{name}", "name": name, "heads": list(heads), "rows": rows,
                               "anchors": anchors})

    def fallback(self):
        heads = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in self.data["heads"])
        rows = "\n".join(
            '<tr><th scope="row">' + (f'<a href="#{anchor}">{html.escape(name)}</a>' if anchor else html.escape(name))
            + "</th>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
            for anchor, (name, *cells) in zip(self.data["anchors"], self.data["rows"], strict=True))
        return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def catalogue(name):
    """The table `name`: accelerators, links, nodes, parts or models. LookupError for another name.

    >>> table = catalogue("accelerators")
    >>> dict(zip(table.data["heads"], table.data["rows"][7]))["16-bit, dense TFLOP/s"]
    '989.4'
    """
    if name not in TABLES:
        raise LookupError(f"no catalogue of {name!r}; there are: {', '.join(TABLES)}")
    heads, entry, rows = TABLES[name]
    return Table(name, heads, tuple(entry(one) for one in rows()))


def _accelerator(part):
    peaks = part.dense_flops
    formats = (("bf16", "fp16"), ("fp8",), ("fp4",))
    bits = [next((peaks[dtype] for dtype in names if dtype in peaks), None) for names in formats]
    label = part.memory_label
    sold = format_bytes(label) if label % GB == 0 else format_binary(label)
    link = part.scale_up
    told = (", ".join(f"{dtype} {_number(flops, TFLOP)}" for dtype, flops in peaks.items()) + " TFLOP/s dense",
            f"link: {link.name}" if link else "", part.notes,
            "" if part.memory_source == "label" else f"memory: {part.memory_source}")
    return Entry(part.name, (part.vendor, _number(part.memory, GiB), sold, _number(part.memory_bandwidth, TB),
                             *(_number(flops, TFLOP) for flops in bits), _number(part.power),
                             _number(link and link.bandwidth, GB), part.date), told, part.source, part.date)


def _link(link):
    told = (link.notes, f"latency: {link.latency_source}" if link.latency_source else "")
    return Entry(link.name, (str(link.links), _number(link.bandwidth, GB), _number(link.bidirectional_bandwidth, GB),
                             _number(link.signalling, 1e9), _number(link.lanes), link.encoding or MISSING,
                             _number(link.latency or None, 1e-6), link.date), told, link.source, link.date)


def _node(node):
    wiring = node.wiring + (" " + " × ".join(map(str, node.shape)) if node.shape else "")
    pair = None if node.wiring == "cube-mesh" else node.pair_bandwidth
    told = (f"link: {node.scale_up.name}", f"{node.cpus} CPUs" if node.cpus else "", node.notes)
    return Entry(node.name, (node.accelerator.name, f"{node.devices:,}", wiring, _number(pair, GB),
                             f"{node.nics:,} × {node.nic.name}" if node.nic else MISSING,
                             _number(node.network_bandwidth if node.nic else None, GB), f"{node.hosts:,}",
                             _number(node.power, 1e3), node.date), told, node.source, node.date)


def _part(part):
    cells = (part.kind, str(part.ports), part.link.name, _number(part.bandwidth, TB), _number(part.price),
             _number(part.power), part.date)
    return Entry(part.name, cells, (part.notes,), part.source, part.date)


def _model(name):
    model = transformer.model(name)
    shape = (model.layers, model.hidden, model.heads, model.kv_heads, model.ffn, model.vocab)
    counts = (model.parameters(), model.active_parameters())
    return Entry(name, (*(f"{value:,}" for value in shape), *(_number(count, 1e9) for count in counts)))


def _anchor(table, name):
    return f"{table}-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _number(value, unit=1.0):
    """Up to five significant digits, with commas; a dash for what is not published."""
    if value is None:
        return MISSING
    text = f"{float(f'{value / unit:.5g}'):,.10f}".rstrip("0").rstrip(".")
    return text


def _told(entry):
    sentences = (*entry.told, f"{entry.source} ({entry.date})")
    text = ". ".join(html.escape(one.rstrip(". ")) for one in sentences if one.strip(" ()"))
    return re.sub(r"https?://[^\s)]+[^\s).,;]", lambda m: f'<a href="{m[0]}">{m[0]}</a>', text)


TABLES = {  # name: heads, a part's row, all parts
    "accelerators": (
        ("part", "maker", "memory, GiB", "as sold", "memory, TB/s", "16-bit, dense TFLOP/s", "8-bit, dense TFLOP/s",
         "4-bit, dense TFLOP/s", "power, W", "own link, GB/s one direction", "date"),
        _accelerator, lambda: hardware.accelerators().values()),
    "links": (  # PCIe with 16 lanes only
        ("link", "links a device", "GB/s one direction", "GB/s as sold, both", "Gb/s a lane", "lanes a link",
         "encoding", "µs a message", "date"),
        _link, lambda: [one for one in hardware.links().values()
                        if not (one.name.startswith("PCIe") and one.lanes < 16)]),
    "nodes": (
        ("node", "accelerator", "devices", "wiring", "pair, GB/s one direction", "network ports",
         "network, GB/s one direction", "hosts", "power, kW", "date"),
        _node, lambda: hardware.nodes().values()),
    "parts": (
        ("part", "kind", "ports", "link", "all ports, TB/s one direction", "price, dollars", "power, W", "date"),
        _part, lambda: hardware.parts().values()),
    "models": (
        ("model", "layers", "hidden", "heads", "key/value heads", "feed-forward", "vocabulary", "parameters, billion",
         "active, billion"),
        _model, transformer.models),
}
