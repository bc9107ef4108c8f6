"""A fabric, a job, an order, a routing: the slowest cable of :mod:`clusterlab.slowest`, all choices computed before."""

from html import escape

from ..slowest import JOBS, fabrics, slowest
from .base import Widget

STATES = ("servers in order, traffic spread", "servers in order, flows hashed",
          "servers shuffled, traffic spread", "servers shuffled, flows hashed")


class Explorer(Widget):
    """Choose, and read which kind of cable is the busiest, how busy, and how busy the others are."""

    module = "slowest"

    def fallback(self):
        data = self.data
        heads = "".join(f'<th scope="col">{name}</th>' for name in JOBS)
        tables = []
        for number, state in enumerate(data["states"]):
            rows = "".join(
                f'<tr><th scope="row">{escape(fabric)}</th>'
                + "".join(f"<td>{max(data['loads'][fabric][name][number]):.1f}</td>" for name in JOBS) + "</tr>"
                for fabric in data["loads"])
            tables.append(f"<details{'' if number else ' open'}><summary>{state[0].upper()}{state[1:]}</summary><table>"
                          f'<thead><tr><th scope="col">busiest cable</th>{heads}</tr></thead><tbody>{rows}</tbody></table></details>')
        jobs = "; ".join(f"{name}: {escape(words)}" for name, words in JOBS.items())
        return (f"<p><strong>{escape(data['title'])}.</strong> {jobs}. Loads in what one rank sends in all.</p>\n"
                + "\n".join(tables))


def explorer(key, *, seed=1):
    """The figure: every fabric with every job, servers in order or shuffled, traffic spread or flows hashed."""
    made = fabrics()
    loads, kinds = {}, {}
    for fabric, layout in made.items():
        loads[fabric] = {}
        for name in JOBS:
            found = [slowest(layout, name, policy=policy, shuffled=shuffled, seed=seed)
                     for shuffled in (False, True) for policy in ("adaptive", "ecmp")]
            kinds[fabric] = list(found[0].by_kind)
            loads[fabric][name] = [[round(load, 2) + 0.0 for load in one.by_kind.values()] for one in found]
    return Explorer(data={"key": key, "title": "512 GPUs on six fabrics: the slowest cable", "jobs": JOBS,
                          "states": STATES, "kinds": kinds, "loads": loads})
