"""A training step on a timeline, rank by rank: predicted for a model on a cluster, and beside a recorded one.

``timeline("step/timeline", recorded=…)`` shows the cases of :mod:`clusterlab.workload` under every schedule, bucket size,
with overlap or without, with a slow rank or without. The page computes what :func:`clusterlab.iteration.unfold` does.
"""

from dataclasses import asdict
from html import escape

from ..iteration import SCHEDULES, unfold
from ..pipeline import simulate
from ..units import format_seconds
from ..workload import case, cases
from .base import Widget

STAGES, MICRO_BATCHES = 4, 8
SAYS = {"data": "data parallel", "gpipe": "pipeline, GPipe", "1f1b": "pipeline, 1F1B",
        "interleaved": "pipeline, interleaved", "zb-h1": "pipeline, zero-bubble ZB-H1", "zb-v": "pipeline, zero-bubble ZB-V"}
BUCKETS = {"1 MB": 1e6, "5 MB": 5e6, "25 MB": 25e6, "100 MB": 100e6, "all at once": None}
SLOW = {"as fast as the others": 1.0, "5 % slower": 1.05, "20 % slower": 1.2, "50 % slower": 1.5}
PHASES = (
    ("load", "D", "**Load.** Each rank gets its own share of the batch."),
    ("forward", "F", "**Forward.** The share goes through the layers, which keep what the backward pass will need."),
    ("loss", "L", "**Loss.** The outputs become one number; no rank needs another's."),
    ("backward", "B", "**Backward.** Gradients come, the last layer's first."),
    ("weights", "W", "**Gradients of the weights.** No other stage waits for them, so they fill what would be idle."),
    ("sync", "S", "**Sum of the gradients.** A bucket leaves when it is full on all its ranks."),
    ("optimizer", "O", "**Optimizer.** Every rank has the same gradient and makes the same step."),
)


class Timeline(Widget):
    """Choose a case, a schedule, a bucket, overlap, a slow rank; step through the phases."""

    module = "timeline"

    def __init__(self, recorded=None, **kwargs):
        self.recorded = recorded
        super().__init__(**kwargs)

    def fallback(self):
        parts = [f"<p><strong>{escape(self.data['title'])}.</strong> <em>Exposed</em>: a rank waits for the sum of its "
                 + "gradients; <em>waiting</em>: for other ranks.</p>"]
        for name in cases():
            parts.append(_folded(case(name).says + ", data parallel", ("bucket", "step", "exposed", "20 % slower rank"),
                                 [_bucket_row(case(name), label, size) for label, size in BUCKETS.items()]
                                 + [("no overlap", *_cells(case(name).unfold(overlap=False, bucket=25e6)),
                                     format_seconds(case(name).unfold(overlap=False, bucket=25e6, slow={1: 1.2}).seconds))]))
            found = {label: case(name).unfold(schedule, bucket=25e6) for schedule, label in SAYS.items()}
            parts.append(_folded(case(name).says + ", schedules", ("schedule", "step", "exposed", "waiting", "MFU"),
                                 [(label, *_cells(one), f"{one.bubble:.1%}", f"{one.mfu:.1%}") for label, one in found.items()]))
        one = case(cases()[0]).unfold(bucket=100e6)
        parts.append(_folded(f"{case(cases()[0]).says}, buckets of 100 MB: what rank 0 does", ("what", "from", "to"), [
            (f"{event.kind} {event.number}", format_seconds(event.start), format_seconds(event.end))
            for event in one.events if event.rank == 0]))
        if self.recorded:
            parts.append(_folded(f"{self.recorded['says']}, recorded: {self.recorded['recorded']}",
                                 ("bucket, overlap, slow rank", "predicted", "recorded", "ratio"),
                                 [_recorded_row(self.recorded["work"], row) for row in self.recorded["rows"]]))
        return "\n".join(parts)


def _cells(found):
    return format_seconds(found.seconds), format_seconds(found.exposed)


def _bucket_row(one, label, size):
    return label, *_cells(one.unfold(bucket=size)), format_seconds(one.unfold(bucket=size, slow={1: 1.2}).seconds)


def _recorded_row(work, row):
    found = unfold(work, bucket=row["bucket"], overlap=row["overlap"], slow={1: row["slow"]})
    size = next(label for label, size in BUCKETS.items() if size == row["bucket"])
    slow = "" if row["slow"] == 1 else f", {row['slow'] - 1:.0%} slower rank"
    return (f"{size}, {'overlap' if row['overlap'] else 'no overlap'}{slow}", format_seconds(found.seconds),
            format_seconds(row["seconds"]), f"{found.seconds / row['seconds']:.2f}")


def _folded(summary, heads, rows):
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "\n".join(f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(text)}</td>" for text in cells) + "</tr>"
                     for first, *cells in rows)
    return (f"<details><summary>{escape(summary)}</summary>\n<table><thead><tr>{head}</tr></thead>\n"
            f"<tbody>\n{body}\n</tbody></table></details>")


def program(schedule):
    """What the stages of a pipeline do in which order: a text a stage, of kind, chunk and micro-batch; None for "data".

    >>> program("1f1b")["programs"][3][:23]
    'F00 B00 F01 B01 F02 B02'
    """
    if schedule == "data":
        return None
    chunks = 2 if schedule in ("interleaved", "zb-v") else 1
    run = simulate(schedule, stages=STAGES, micro_batches=MICRO_BATCHES, forward=1, backward=2,
                   virtual=2 if schedule == "interleaved" else 1)
    return {"programs": [" ".join(f"{e.kind}{e.chunk}{e.micro_batch}" for e in run.events if e.stage == stage)
                         for stage in range(STAGES)],
            "chunks": chunks, "folded": schedule == "zb-v", "split": schedule.startswith("zb")}


def timeline(key, *, recorded=None):
    """The figure. `recorded`: {"says", "recorded" (where and when), "work", "rows"} of a real run of data parallelism."""
    shown = [{"says": case(name).says, "data": asdict(case(name).data), "pipeline": asdict(case(name).pipeline)}
             for name in cases()]
    if recorded:
        shown.append({name: recorded[name] for name in ("says", "recorded", "rows")} | {"data": asdict(recorded["work"])})
    phases = [{"kind": kind, "mark": mark, "says": says.replace("**", "")} for kind, mark, says in PHASES]
    return Timeline(recorded, data={
        "key": key, "title": "One training step, rank by rank", "cases": shown, "phases": phases,
        "schedules": [{"says": SAYS[name], "program": program(name)} for name in SCHEDULES],
        "sizes": [{"says": label, "bytes": size} for label, size in BUCKETS.items()],
        "slows": [{"says": label, "factor": factor} for label, factor in SLOW.items()]})
