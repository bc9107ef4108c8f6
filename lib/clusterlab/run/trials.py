"""Several trainings on the same ranks, each with settings of its own: what differs between two of them is what you set.

`compare` runs several strategies on one task; `train_each` runs several tasks, and so sets a mistake beside the right way.
"""

from clusterlab.run.parallel import MISTAKES, SMALL, SMALL_EXPERTS, STRATEGIES, check, collect, rank_work
from clusterlab.run.ranks import launch
from clusterlab.run.trainer import Task


def train_each(world_size, jobs, *, timeout=60):
    """Run jobs ``{name: (strategy, settings)}`` one after the other on the same ranks; returns {name: Result}.

    `settings` are those of `compare`, `shape` and `mistake` among them. Raises LookupError for an unknown strategy or
    mistake, ValueError for what cannot be divided, before any rank starts.
    """
    tasks = {}
    for name, (strategy, settings) in jobs.items():
        for value, known in ((strategy, STRATEGIES), (settings.get("mistake"), [None, *MISTAKES])):
            if value not in known:
                raise LookupError(f"{name}: {value!r} is unknown; known: {', '.join(k for k in known if k)}")
        tasks[name] = strategy, Task(**{"shape": SMALL_EXPERTS if strategy == "expert" else SMALL} | settings)
        check(*tasks[name], world_size)
    answers = launch(rank_work, world_size, list(tasks.values()), timeout=timeout)
    return {name: collect(*task, of_ranks) for (name, task), *of_ranks in zip(tasks.items(), *answers, strict=True)}
