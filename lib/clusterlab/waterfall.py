"""Where a training job's wall-clock time goes, and what must improve to keep more of it.

`reliability.goodput` says how much is left. The parts below say what took the rest, exactly for exponential failures,
and add up to one; `needed` turns the question round. Times are seconds.
"""

from dataclasses import dataclass, replace

import numpy as np

from clusterlab.extremes import not_negative, plain, positive
from clusterlab.reliability import goodput, optimal_interval, system_mtbf

LEVERS = ("mtbf", "write", "recovery", "all")


@dataclass(frozen=True)
class Operation:
    """How a job of one size is operated: how often a unit fails, and what each checkpoint and each failure cost.

    unit_mtbf   seconds between failures of one unit (a node);  units  how many the job needs
    write       seconds for which all stand still at a checkpoint
    detect      seconds from a failure until it is known where;  restart  from then to the first new step
    drain       seconds until a background checkpoint can be restored; see :func:`reliability.goodput`
    interval    seconds of work between checkpoints; None for the best, but never shorter than a drain allows
    """

    unit_mtbf: float
    units: float
    write: float
    detect: float
    restart: float
    drain: float = 0.0
    interval: float | None = None

    def __post_init__(self):
        positive(unit_mtbf=self.unit_mtbf, units=self.units, write=self.write)
        not_negative(detect=self.detect, restart=self.restart, drain=self.drain)

    @property
    def mtbf(self):
        """Seconds between failures of the whole job."""
        return system_mtbf(self.unit_mtbf, self.units)

    @property
    def work(self):
        """Seconds of work between checkpoints: what was given, or the best."""
        if self.interval is not None:
            return self.interval
        return plain(np.maximum(optimal_interval(self.write, self.mtbf), np.asarray(self.drain, float) - self.write))

    @property
    def goodput(self):
        """Share of the wall-clock time that becomes banked work."""
        return goodput(self.work, write=self.write, mtbf=self.mtbf, restart=self.detect + self.restart,
                       drain=self.drain)


def waterfall(operation):
    """{part: share of the wall-clock time}: "detect", "restart", "checkpoint", "lost", "useful"; they add up to 1.

    With M the MTBF, detection takes 1 - exp(-D/M) and the restart after it exp(-D/M) - exp(-(D + R)/M), because a new
    failure may cut either short. "checkpoint" is write / interval for each share of useful time. "lost" is the rest:
    work that no finished checkpoint holds, about half an interval a failure, and torn writes. Raises ValueError as
    :func:`reliability.goodput` does.

    >>> job = Operation(unit_mtbf=3.0e7, units=2048, write=5.0, detect=240.0, restart=360.0)
    >>> {part: round(100 * share, 1) for part, share in waterfall(job).items()}
    {'detect': 1.6, 'restart': 2.4, 'checkpoint': 1.2, 'lost': 1.3, 'useful': 93.5}
    """
    o, useful = operation, operation.goodput
    running = np.exp(-np.true_divide(o.detect, o.mtbf))
    parts = {"detect": 1.0 - running, "restart": running - np.exp(-np.true_divide(o.detect + o.restart, o.mtbf)),
             "checkpoint": useful * o.write / np.asarray(o.work)}
    parts["lost"] = 1.0 - useful - sum(parts.values())
    return {part: plain(np.asarray(share)) for part, share in parts.items()} | {"useful": useful}


def needed(operation, goal, lever):
    """The factor by which `lever` must improve so that goodput is `goal`; infinity if no factor is enough. Scalars.

    lever   "mtbf": failures that many times rarer;  "write": checkpoint and drain that many times shorter;
            "recovery": detection and restart that many times shorter;  "all": all three by the same factor.
    The interval is the best one each time, unless the operation fixes it. 1.0 if the goal is met already. Raises
    ValueError unless 0 < goal < 1, LookupError for an unknown lever.

    >>> job = Operation(unit_mtbf=3.0e7, units=12_500, write=5.0, detect=240.0, restart=360.0)
    >>> [round(needed(job, 0.9, lever), 1) for lever in LEVERS]
    [3.5, inf, 6.2, 1.9]
    """
    if not 0.0 < goal < 1.0:
        raise ValueError(f"goal={goal!r}: must be between 0 and 1")
    if operation.goodput >= goal:
        return 1.0
    if improved(operation, lever, 1e9).goodput < goal:
        return float("inf")
    low, high = 0.0, 9.0  # powers of ten
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (low, middle) if improved(operation, lever, 10.0**middle).goodput >= goal else (middle, high)
    return 10.0**high


def improved(operation, lever, factor):
    """The operation with `lever` better by `factor`, as in :func:`needed`.

    >>> improved(Operation(1e6, 10, 5.0, detect=30.0, restart=60.0), "recovery", 2).restart
    30.0
    """
    if lever not in LEVERS:
        raise LookupError(f"lever={lever!r}: want one of {', '.join(LEVERS)}")
    positive(factor=factor)
    o, mtbf, write, recovery = operation, *(factor if lever in (one, "all") else 1.0 for one in LEVERS[:3])
    return replace(o, unit_mtbf=o.unit_mtbf * mtbf, write=o.write / write, drain=o.drain / write,
                   detect=o.detect / recovery, restart=o.restart / recovery)
