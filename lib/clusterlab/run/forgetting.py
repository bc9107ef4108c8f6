"""What must a checkpoint hold? Leave out one part at a time, resume, and see when the losses tell.

    forget()        # {"nothing": None, "weights": 0, "loader": 0, "generators": 0, "moments": 1, "schedule": 2}
"""

from dataclasses import replace

from clusterlab.run.job import Job, Training
from clusterlab.run.ranks import launch
from clusterlab.run.snapshot import copied, flat, restore, snapshot

PARTS = ("nothing", "weights", "loader", "generators", "moments", "schedule")


def forget(parts=PARTS, world_size=2, *, saved=3, steps=8, job=None, timeout=60):
    """Resume after `saved` steps without one of `parts`; returns {part: resumed steps with a right loss, or None}.

    0: the first loss is wrong already; None: all of them to step `steps` have the bits of a run that never stopped.
    Raises ValueError for an unknown part, or unless 0 < saved < steps.
    """
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"parts has {part!r}: want {', '.join(PARTS)}")
    if not 0 < saved < steps:
        raise ValueError(f"saved={saved}: want 1 to steps - 1 = {steps - 1}")
    straight, *resumed = launch(_resumed, world_size, job or Job(), tuple(parts), saved, steps, timeout=timeout)[0]
    wrong = [[a != b for a, b in zip(straight, losses, strict=True)] for losses in resumed]
    return {part: flags.index(True) if any(flags) else None for part, flags in zip(parts, wrong, strict=True)}


def _resumed(job, parts, saved, steps):
    """Losses after step `saved` on one rank: of the run that goes on, then of one that resumes for each part."""
    training = Training(job)
    for _ in range(saved):
        training.step()
    kept = snapshot(saved, training.state, copy=True)
    runs = [[training.step() for _ in range(saved, steps)]]
    for part in parts:
        training = Training(job)
        restore(training.state, _without(part, kept, training), rng=part != "generators")
        runs.append([training.step() for _ in range(saved, steps)])
    return runs


def _without(part, kept, training):
    """The snapshot as it would be had the saver forgotten a part: there a new run's own stands in its place."""
    fresh, kept = snapshot(0, training.state, copy=True), replace(kept, tensors=copied(kept.tensors))  # restore eats them
    if part == "weights":
        kept.tensors["model"] = fresh.tensors["model"]
    if part == "moments":
        for tensor in flat(kept.tensors["optimizer"]["state"]).values():
            tensor.zero_()
    return replace(kept, parts=kept.parts | {part: fresh.parts[part]}) if part in kept.parts else kept
