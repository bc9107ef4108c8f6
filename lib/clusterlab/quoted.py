"""What others quote: rents of devices, energies of training runs, overheads, prices of electricity.

``data/rents.toml`` and ``data/energy.toml`` hold one table for each, with source and date. A quoted value is evidence
with a day on it, not a constant: the same chip is offered at several prices on one day, and an energy is only as good
as the power it was multiplied with.

>>> from clusterlab import quoted
>>> prices = [rent.price for rent in quoted.rents("H100 SXM")]
>>> f"{max(prices) / min(prices):.1f} times"
'4.6 times'
"""

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from clusterlab.cost import emissions, kWh, run_energy
from clusterlab.units import hour

FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Rent:
    """One offer on demand: `price` in dollars for one device and hour, taken in groups of `devices`."""

    name: str
    part: str
    devices: int
    price: float
    source: str
    date: str


@dataclass(frozen=True)
class TrainingRun:
    """A published run. `seconds` are device-seconds, `power` W a device as the source takes it, `power_is` "measured"
    (host included) or "TDP"; `energy` in J, `emissions` in kg and `intensity` in kg/kWh as printed, None where not."""

    name: str
    part: str
    seconds: float
    power: float
    power_is: str
    source: str
    date: str
    pue: float = 1.0
    energy: float | None = None
    emissions: float | None = None
    intensity: float | None = None
    notes: str = ""

    def computed_energy(self):
        """Joules by :func:`clusterlab.cost.run_energy` from the run's own hours, power and PUE.

        >>> round(training_run("T5").computed_energy() / kWh)      # the paper prints 85.7 MWh
        85328
        """
        return run_energy(1, self.seconds, power=self.power, pue=self.pue)

    def computed_emissions(self):
        """Kilograms from the computed energy and the printed intensity; ValueError where none is printed.

        >>> round(training_run("BLOOM 176B").computed_emissions())
        24692
        """
        if self.intensity is None:
            raise ValueError(f"{self.name}: the source prints no intensity; see implied_intensity()")
        return emissions(self.computed_energy(), intensity=self.intensity)

    def implied_intensity(self):
        """kg/kWh that lead from the computed energy to the printed emissions; ValueError where none are printed.

        >>> round(training_run("Llama 2 70B").implied_intensity(), 3)
        0.423
        """
        if self.emissions is None:
            raise ValueError(f"{self.name}: the source prints no emissions")
        return self.emissions / (self.computed_energy() / kWh)


@cache
def _table(name):
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))


def _find(kind, name, table):
    if name not in table:
        near = difflib.get_close_matches(str(name), table, 3, 0.4)
        raise LookupError(f"no {kind} {name!r}; {'near' if near else 'there are'}: {', '.join(near or table)}")
    return table[name]


def rents(part=None):
    """The offers listed, cheapest first; of one accelerator where `part` names it (LookupError if nobody offers it).

    >>> [rent.name for rent in rents("B200")]
    ['Hyperstack B200', 'Lambda 8x B200']
    """
    offers = sorted((Rent(name, **row) for name, row in _table("rents").items()), key=lambda rent: rent.price)
    if part is not None:
        _find("offer of", part, {rent.part: rent for rent in offers})
    return [rent for rent in offers if part in (None, rent.part)]


def rent(name):
    """The offer of that name.

    >>> rent("AWS p5.48xlarge").price
    6.88
    """
    return Rent(name, **_find("offer", name, _table("rents")))


@cache
def training_runs():
    """All published runs, name → TrainingRun.

    >>> {run.power_is for run in training_runs().values()} == {"measured", "TDP"}
    True
    """
    runs = {}
    for name, row in _table("energy")["run"].items():
        hours, energy = row["hours"], row.get("energy")
        rest = {key: value for key, value in row.items() if key not in ("hours", "energy")}
        runs[name] = TrainingRun(name, seconds=hours * hour, energy=energy and energy * kWh, **rest)
    return runs


def training_run(name):
    """The published run of that name.

    >>> training_run("GPT-3 175B").energy / kWh
    1287000.0
    """
    return _find("training run", name, training_runs())


def pue(name):
    """A yearly mean of energy of the building over energy of the computers: "industry average", "Google fleet".

    >>> pue("industry average")
    1.58
    """
    return _find("PUE", name, _table("energy")["pue"])["value"]


def electricity(name):
    """Dollars a kWh that industry pays in a state, yearly mean.

    >>> electricity("California") / electricity("Texas") > 2.8
    True
    """
    return _find("price of electricity", name, _table("energy")["electricity"])["value"]


def coolant(name):
    """Density in kg/m³ and heat capacity in J/(kg·K) of "air" or "water", the arguments of cost.coolant_flow().

    >>> coolant("water")
    {'density': 997.0, 'heat_capacity': 4181}
    """
    row = _find("coolant", name, _table("energy")["coolant"])
    return {key: row[key] for key in ("density", "heat_capacity")}
