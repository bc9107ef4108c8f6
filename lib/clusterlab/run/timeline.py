"""What the failure lab saw: incidents, losses, and where the time went."""

import statistics
from dataclasses import dataclass

from clusterlab import reliability
from clusterlab.run.compared import Compared

SEEN = {"kill": "killed", "lose": "killed", "freeze": "frozen", "slow": "slow", "corrupt": "corrupt"}
PARTS = ("useful", "checkpoint", "detect", "restart", "recompute", "degrade")


@dataclass(frozen=True)
class Incident:
    """One failure: what was planned (None: nobody planned it), what was seen of it."""

    fault: object
    seen: str               # "killed", "frozen", "slow", "corrupt", or another reason of RankError
    named: tuple            # ranks that were named; () when something is wrong but nobody can say where
    seconds: float          # from the fault until the supervisor knew
    start: int              # in which start of the ranks, from 0
    done: int               # steps that were done by then
    world: int              # ranks of the next start

    @property
    def right(self):
        """Whether the rank that was hit is the one that was named, for what it had."""
        if self.fault is None or self.seen != SEEN[self.fault.kind]:
            return False
        return bool(self.named) and all(map(self.fault.hits, self.named))


@dataclass(frozen=True)
class Timeline(Compared):
    """A disturbed run. `events`: (seconds, start, kind, …), on one clock; `worlds`: ranks of each start; `reference`:
    losses of the undisturbed run, or None."""

    incidents: tuple
    events: tuple
    worlds: tuple
    world_size: int
    steps: int
    checkpoint_every: int
    reference: list | None

    @property
    def losses(self):
        """Of each step, as it was computed last."""
        found = {event[3]: event[4] for event in self.events if event[2] == "step"}
        return [found[step] for step in range(self.steps)]

    @property
    def resumed(self):
        """Steps done at the begin of each start."""
        return [event[3] for event in self.events if event[2] == "ready"]

    @property
    def lost(self):
        """Steps that each incident made undone."""
        return [max(0, i.done - self._resumed(i.start + 1)) for i in self.incidents]

    @property
    def committed_lost(self):
        """Steps that a checkpoint had committed and that were lost all the same: none, or checkpoints are bad."""
        saved = [(start, step) for _, start, _, step in (e for e in self.events if e[2] == "saved")]
        committed = [max([0, *(step for start, step in saved if start <= i.start)]) for i in self.incidents]
        return sum(max(0, step - self._resumed(i.start + 1)) for step, i in zip(committed, self.incidents, strict=True))

    def _resumed(self, start):
        return next((e[3] for e in self.events if e[1] >= start and e[2] == "ready"), 0)

    @property
    def undetected(self):
        """(start, rank) of faults after which nothing was noticed."""
        seen = {i.start for i in self.incidents}
        return [(event[1], event[3]) for event in self.events if event[2] in ("fault", "flaw") and event[1] not in seen]

    def seconds(self):
        """{part of the wall time: seconds}; they add up to `wall`. The clock runs from the first ready rank to the end.

        useful      steps done for the first time              checkpoint  standing still to save
        detect      from a fault until the supervisor knows    restart     until all ranks are ready again
        recompute   steps done again, and the torn one         degrade     what first-time steps took longer than usual
                                                                           with a slow rank or with fewer ranks
        """
        parts, seen, usual = dict.fromkeys(PARTS, 0.0), set(), self._usual()
        last = self.events[0][0]
        for at, start, kind, *rest in self.events:
            if kind == "flaw":                                      # the step goes on as if nothing were
                continue
            took, last = at - last, at
            if kind == "step":
                new = rest[0] not in seen
                seen.add(rest[0])
                extra = max(0.0, took - usual) if new and usual and not self._healthy(start) else 0.0
                parts["useful" if new else "recompute"] += took - extra
                parts["degrade"] += extra
            elif kind in ("saved", "copied"):
                parts["checkpoint"] += took
            elif kind == "ready":
                parts["restart"] += took
            elif kind == "fault":
                parts["recompute"] += took
            else:                                                   # noticed, detected
                parts["detect"] += took
        return parts

    def _usual(self):
        """Median seconds of a step in starts with all ranks and no slow one; None if there was no such start."""
        pairs = zip(self.events, self.events[1:], strict=False)
        steps = [b[0] - a[0] for a, b in pairs if b[2] == "step" and self._healthy(b[1])]
        return statistics.median(steps) if steps else None

    def _healthy(self, start):
        slow = any(i.start == start and i.seen == "slow" for i in self.incidents)
        return self.worlds[start] == self.world_size and not slow

    @property
    def wall(self):
        """Seconds from the first ready rank to the end."""
        return self.events[-1][0] - self.events[0][0]

    @property
    def goodput(self):
        """Share of the wall time in which work was done that stayed, at full speed."""
        return self.seconds()["useful"] / self.wall

    def model(self):
        """The goodput that `reliability.goodput` expects of failures at random moments, at this run's measured costs.

        Its mean over many runs is what the formula is about; one run with a handful of failures is a draw from it.
        """
        parts = self.seconds()
        saves = sum(event[2] in ("saved", "copied") for event in self.events)
        failures = len(self.incidents)
        interval, write = self.checkpoint_every * parts["useful"] / self.steps, parts["checkpoint"] / max(1, saves)
        if not failures:
            return interval / (interval + write)
        restart = (parts["detect"] + parts["restart"]) / failures
        return reliability.goodput(interval, write=write, mtbf=self.wall / failures, restart=restart)

    def table(self):
        """One line an incident, without seconds: the same in every run."""
        lines = ["fault                       seen      named   steps lost   goes on with"]
        for incident, lost in zip(self.incidents, self.lost, strict=True):
            f, named = incident.fault, ", ".join(map(str, incident.named)) or "nobody"
            if f and f.kind == "lose" and incident.right:           # which of them was seen first is chance
                named = f"{f.rank}-{f.rank + f.ranks - 1}"
            what = f"{f.kind} rank {f.rank}, step {f.step}, {f.moment}" if f else "not planned"
            lines.append(f"{what:27} {incident.seen:9} {named:7} {lost:10}   {incident.world} ranks from step "
                         f"{self._resumed(incident.start + 1)}")
        return "\n".join(lines)

    def waterfall(self):
        """The wall time and what it went to, in seconds and shares."""
        lines = [f"{'wall':10} {self.wall:7.2f} s"]
        lines += [f"{part:10} {s:7.2f} s {s / self.wall:6.1%}" for part, s in self.seconds().items()]
        lines.append(f"goodput {self.goodput:.1%}, expected of such failures at random {self.model():.1%}")
        return "\n".join(lines)
