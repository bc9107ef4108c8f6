"""A soak: random kills, freezes and slowdowns, one after the other: `python benchmarks/faults.py --faults 200`.

Each fault strikes a random rank at a random place of a run of its own. It is bad when another rank is named, a rank
outlives the run, a committed step is lost, or the losses are not the very bits of the undisturbed run.
"""

import argparse
import os
import random
import statistics
import time
from collections import Counter, defaultdict
from multiprocessing import forkserver

from clusterlab.run.failures import MOMENTS, Fault, train_with_failures
from clusterlab.run.job import Job, undisturbed_losses
from clusterlab.run.ranks import launch
from clusterlab.run.survive import continue_without

STEPS, EVERY = 8, 2


def orphans():
    """Processes that ranks left behind."""
    server = forkserver._forkserver._forkserver_pid
    with open(f"/proc/{server}/task/{server}/children") as children:
        return children.read().split()


def draw(dice, ranks):
    """One fault, anywhere."""
    kind = dice.choice(["kill", "kill", "kill", "freeze", "slow"])
    moment = dice.choice(MOMENTS[kind])
    last = STEPS - 4 if kind == "slow" else STEPS                   # a slow rank is known after three steps
    step = dice.choice(range(EVERY, STEPS, EVERY)) if moment == "save" else dice.randrange(last)
    return Fault(kind, dice.randrange(ranks), step, moment, seconds=0.5)


def soak(faults, *, seed=0, budget=600.0, timeout=3.0, say=lambda line: None):
    """(how many faults were done within `budget` seconds, [what went wrong]); prints a table through `say`."""
    dice, end, bad, jobs = random.Random(seed), time.monotonic() + budget, [], {}
    seconds, lost = defaultdict(list), Counter()
    for done in range(faults):
        if time.monotonic() > end:
            break
        ranks, strategy = dice.choice([2, 3, 4]), dice.choice(["ddp", "fsdp"])
        job = Job(strategy=strategy, seed=done % 3)
        if (ranks, job) not in jobs:
            jobs[ranks, job] = launch(undisturbed_losses, ranks, job, STEPS, timeout=60)[0]
        fault, background = draw(dice, ranks), dice.random() < 0.3
        run = train_with_failures([fault], ranks, steps=STEPS, checkpoint_every=EVERY, job=job, timeout=timeout,
                                  background=background, reference=False)
        wrong = [words for words, true in [
            (f"{[(i.seen, i.named) for i in run.incidents]}", not any(i.right for i in run.incidents)),
            ("not planned", any(i.fault is None for i in run.incidents)), ("orphans", orphans()),
            ("a committed step was lost", run.committed_lost), ("other bits", run.losses != jobs[ranks, job])] if true]
        if wrong:
            bad.append((done, fault, ranks, strategy, background, wrong))
            say(f"BAD {bad[-1]}")
        if done % 20 == 19:
            say(f"{done + 1} faults, {len(bad)} bad")
        for incident, steps in zip(run.incidents, run.lost, strict=True):
            if incident.fault:
                seconds[fault.kind].append(incident.seconds)
                lost[fault.kind] += steps
    else:
        done = faults
    say("kind     faults   detected after: median   worst   steps lost, mean")
    for kind, values in sorted(seconds.items()):
        say(f"{kind:8} {len(values):6} {statistics.median(values):21.2f} s {max(values):5.2f} s "
            f"{lost[kind] / len(values):10.1f}")
    say(f"{done} of {faults} faults, {len(bad)} bad")
    return done, bad


def beside(say=print):
    """One lost rank of four: all start again from storage, or the survivors go on from memory."""
    job, fault = Job(strategy="fsdp", dropout=0.0), Fault("lose", 2, 7)
    run = train_with_failures([fault], job=job, reference=False)
    parts = run.seconds()
    say(f"4 ranks, one lost: full restart {parts['detect'] + parts['restart']:.2f} s and {run.lost[0]} steps lost, ")
    kept = continue_without([fault], job=job)
    say(f"                   shrunk, from memory {kept.stalled[0]:.2f} s and {kept.lost[0]} steps lost")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20.0, help="stop after so long, however many were done")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds a rank waits for another")
    options = parser.parse_args()
    print(f"seed {options.seed}, {os.cpu_count()} cores, ranks wait {options.timeout:g} s for each other")
    started = time.monotonic()
    _, problems = soak(options.faults, seed=options.seed, budget=60 * options.minutes, timeout=options.timeout,
                       say=print)
    print(f"{time.monotonic() - started:.0f} s")
    beside()
    raise SystemExit(bool(problems))
