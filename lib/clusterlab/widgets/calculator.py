"""The calculator: a model, a plan and a part; what a device must hold, what makes it fit, what the run takes.

The formulas are the library's, written once more in ``calculator.js`` so that a page needs no server; a test compares
them on random inputs. Here stand the inputs with their defaults, the catalogue, and a table of worked cases computed
by the library for a page without script.
"""

import dataclasses
from html import escape

from .. import fitting, hardware, memory
from ..collectives import ALGORITHMS
from ..fitting import smallest_change
from ..kernels import constants
from ..plan import Plan
from ..transformer import model, models
from ..units import format_bytes
from .base import Widget

RECIPES = ("MIXED_16", "MIXED_18", "MIXED_20", "PURE_16", "FP32")
DTYPES = ("bf16", "fp16", "fp8", "tf32", "fp32")
DEVICES, TRILLION = 90_000_000, 1e15
CASES = (  # part and plan: what the fallback works out for Llama 2 13B
    ("A100 SXM 40GB", Plan(data=8, global_batch=16, micro_batch=2, seq=4096, recompute="none", zero_stage=1)),
    ("A100 SXM 40GB", Plan(data=8, global_batch=16, micro_batch=2, seq=4096, recompute="none", zero_stage=3)),
    ("A100 SXM 40GB", Plan(data=8, global_batch=16, micro_batch=2, seq=4096, recompute="full", zero_stage=3)),
    ("H100 SXM", Plan(data=8, global_batch=16, micro_batch=2, seq=4096, recompute="full", zero_stage=1)),
    ("H100 SXM", Plan(tensor=8, global_batch=16, micro_batch=2, seq=4096, recompute="none", zero_stage=0)),
    ("H200 SXM", Plan(data=8, global_batch=16, micro_batch=2, seq=4096, recompute="none", zero_stage=1)),
)
HOW = {"attention": "flash", "dropout": False}


class Calculator(Widget):
    """Type, and read at once: the sum, the verdict, the smallest change that fits, time, energy and cost."""

    module = "calculator"

    def fallback(self):
        rows = "".join(f"<tr><th scope=\"row\">{escape(words)}</th><td>{format_bytes(total, 3)}</td>"
                       f"<td>{format_bytes(has, 3)}</td><td>{escape(verdict)}</td></tr>"
                       for words, total, has, verdict in map(_worked, CASES))
        heads = "".join(f'<th scope="col">{head}</th>' for head in ("plan", "needs", "has", "verdict"))
        return ("<p><strong>Calculator.</strong> It runs in the page, with script. Six cases that the library worked "
                "out: Llama 2 13B on eight devices, two sequences of 4,096 tokens in a micro-batch and 16 in the global "
                "batch, 16 bytes a parameter, flash attention, no dropout.</p>\n"
                f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>")


def _worked(case):
    name, plan = case
    part, shape = hardware.accelerator(name), model("llama-2-13b")
    total = memory.device_memory(shape, plan, **HOW).total
    change = None if total <= part.memory else smallest_change(shape, plan, part, **HOW)
    verdict = "fits" if total <= part.memory else f"smallest change: {change.says}" if change else "no single change"
    words = f"{name}, tensor {plan.tensor}, data {plan.data}, ZeRO-{plan.zero_stage}, recompute {plan.recompute}"
    return words, total, part.memory, verdict


def calculator(key):
    """The calculator ``key``: defaults, models, parts and links as data; the reader's inputs are its state."""
    groups = _groups()
    defaults = {field["key"]: field.pop("default") for group in groups for field in group["fields"]}
    return Calculator(data={"key": key, "title": "Does it fit, and what does it take?", "groups": groups,
                            "defaults": defaults, "costs": fitting.COSTS, "share": constants().link, **_catalogue()})


def _catalogue():
    shapes = {name: {field.name: value for field in dataclasses.fields(shape)
                     if (value := getattr(shape, field.name)) != field.default}
              for name, shape in ((name, model(name)) for name in models())}
    parts = {part.name: {"memory": part.memory, "bandwidth": part.memory_bandwidth, "power": part.power,
                         "peaks": [list(pair) for pair in part.dense_flops.items()],
                         "link": part.scale_up and _pair(part.scale_up)}
             for part in hardware.accelerators().values()}
    nodes = {node.name: [node.devices, node.wiring == "mesh", *_pair(node.scale_up), node.nics,
                         node.network_bandwidth if node.nics else 0, node.nic.latency if node.nics else 0]
             for node in hardware.nodes().values()}
    recipes = {name: dataclasses.asdict(getattr(memory, name)) for name in RECIPES}
    return {"models": shapes, "parts": parts, "nodes": nodes, "recipes": recipes,
            "links": {link.name: _pair(link) for link in hardware.links().values()}}


def _pair(link):
    return [link.bandwidth, link.latency]


def _number(key, label, default, most=DEVICES, **more):
    return {"key": key, "label": label, "kind": "number", "default": default, "most": most, **more}


def _choice(key, label, default, options, **more):
    options = [list(one) if isinstance(one, tuple) else [one, one] for one in options]
    return {"key": key, "label": label, "kind": "choice", "default": default, "options": options, **more}


def _flag(key, label, default="off", **more):
    return {"key": key, "label": label, "kind": "flag", "default": default, **more}


def _groups():
    """The form: fieldsets of fields; a field's key is the library's name of the argument."""
    own = {"only": {"model": "own"}}
    bytes_each = {"only": {"recipe": "own"}}
    return [
        {"legend": "Model", "fields": [
            _choice("model", "model", "llama-2-13b", [*models(), ("own", "my own …")]),
            _number("layers", "layers", "32", **own), _number("hidden", "hidden width", "4096", **own),
            _number("heads", "heads", "32", **own),
            _number("kv_heads", "kv heads (empty: as heads)", "8", optional=True, **own),
            _number("head_dim", "head width (empty: hidden ÷ heads)", "", optional=True, **own),
            _number("ffn", "MLP width, ffn (empty: 4 × hidden)", "14336", optional=True, **own),
            _number("vocab", "vocabulary", "128256", **own),
            _flag("gated", "gated MLP: three matrices", "on", **own), _flag("tied", "head tied to embedding", **own),
            _number("experts", "experts", "1", **own), _number("experts_per_token", "experts a token", "1", **own)]},
        {"legend": "Training", "fields": [
            _choice("recipe", "bytes a parameter", "MIXED_16", [
                (name, f"{getattr(memory, name).total}: {name}") for name in RECIPES] + [("own", "my own …")]),
            *(_number(name, f"bytes a parameter: {name}", default, most=1000, **bytes_each)
              for name, default in (("weight", "2"), ("gradient", "2"), ("master", "4"), ("moments", "8"))),
            _number("seq", "tokens a sequence", "4096"), _number("micro_batch", "micro-batch, sequences", "2"),
            _number("global_batch", "global batch, sequences", "16"),
            _choice("recompute", "recompute", "none", ("none", "selective", "full")),
            _choice("attention", "attention", "flash", (
                ("eager", "eager: stores scores"), ("flash", "flash: stores none")))]},
        {"legend": "Devices", "fields": [
            _choice("part", "part", "A100 SXM 40GB", list(hardware.accelerators())),
            _number("data", "data parallel", "8"), _number("tensor", "tensor parallel", "1"),
            _number("pipeline", "pipeline stages", "1"),
            _choice("zero_stage", "ZeRO stage", "1", (
                ("0", "0: none cut"), ("1", "1: optimizer"), ("2", "2: and gradients"), ("3", "3: and weights")),
                whole=True),
            _flag("sequence_parallel", "sequence parallel (in the tensor group)", "on")]},
        {"legend": "More parallelism and conventions", "more": True, "fields": [
            _number("context", "context parallel", "1"), _number("expert", "expert parallel", "1"),
            _number("virtual", "model chunks a stage", "1"), _flag("dropout", "dropout"),
            _choice("logit_bytes", "logits", "4", (
                ("4", "one fp32 copy"), ("12", "three fp32 copies: a plain loss")), whole=True),
            _flag("causal", "count half of the attention square"),
            _choice("flops", "FLOP a token", "counted", (
                ("counted", "counted, matrix by matrix"), ("six", "6 × active parameters"))),
            _choice("show", "show sizes in", "GB", (("GB", "GB, 10⁹ bytes"), ("GiB", "GiB, 2³⁰ bytes")))]},
        {"legend": "Time, energy and cost", "more": True, "fields": [
            _choice("dtype", "dense peak of", "bf16", DTYPES), _number("mfu", "MFU, 0 to 1", "0.4", most=1e6),
            _number("tokens", "training tokens", "2e12", most=TRILLION * 1e3),
            _number("price_per_hour", "dollars a device-hour", "2", most=1e9),
            _number("power", "watts a device (empty: the part's)", "", most=1e9, optional=True),
            _number("pue", "PUE: building ÷ computers", "1.2", most=1000),
            _choice("over", "all-reduce over", "own", [
                ("own", "the part's scale-up link"), *hardware.links(),
                *((name, f"{name}, in and between nodes") for name in hardware.nodes())]),
            _choice("algorithm", "by", "ring", ALGORITHMS), _number("chunks", "chunks (double-tree)", "1")]},
    ]
