"""What a training run costs in energy and money, and which input of such a sum matters most.

Energy is power × time; money is device-hours × price; both grow with everything that keeps devices busy longer. Energy
is joules, power watts, time seconds; prices keep the unit they are quoted in, and their argument names it
(`price_per_hour`: dollars for one device and hour; `price_per_kwh`). Arguments are floats or arrays and broadcast.
What others quoted (rents, energies, PUEs) stands in :mod:`clusterlab.quoted`.

>>> from clusterlab.cost import MWh, run_energy
>>> round(run_energy(10_000, 14.8 * 86400, power=330, pue=1.10) / MWh)     # GPT-3; the paper prints 1,287 MWh
1289
"""

import numpy as np

from clusterlab.components import published
from clusterlab.compute import training_seconds
from clusterlab.extremes import not_negative, plain, positive
from clusterlab.units import day, hour

kWh, MWh, GWh, TWh = 3.6e6, 3.6e9, 3.6e12, 3.6e15     # in joules
year = 365.25 * day


# Energy


def device_power(part):
    """Watts that the catalogue gives for one device: an accelerator's own, or its share of the node around it.

    Accelerator: `power`, the limit of chip and memory alone. Node: `power / devices`, the maximum of everything in the
    box: processors, network cards, fans. ValueError where the maker publishes none.

    >>> from clusterlab.hardware import accelerator, node
    >>> device_power(accelerator("H100 SXM")), device_power(node("DGX H100"))
    (700, 1275.0)
    """
    watts = published(part, "power")
    return watts / part.devices if hasattr(part, "devices") else watts


def run_energy(devices, seconds, *, power, share=1.0, pue=1.0):
    """Joules that a run takes from the grid: devices · seconds · power · share · pue.

    power  W a device, with or without the host around it: say which (:func:`device_power`)
    share  of `power` that is drawn on average; above 1 where `power` is the chip's and the host draws as well
    pue    energy of the building over energy of its computers, never below 1
    Device-hours alone do too: ``run_energy(1, device_seconds, …)``. Errors: ValueError.
    Source: Patterson et al. 2021, table 4, arXiv:2104.10350.

    >>> round(run_energy(8, 29.1 * 60, power=6741 / 8) / kWh, 2)     # MLPerf v4.0: 3.27 kWh, metered
    3.27
    """
    not_negative(devices=devices, seconds=seconds)
    positive(power=power, share=share)
    _pue(pue)
    return plain(np.multiply(1.0, devices) * seconds * power * share * pue)


def emissions(energy, *, intensity):
    """Kilograms of CO2 equivalent: energy · intensity, the latter in kg/kWh of the grid that fed the run.

    >>> round(emissions(433_196 * kWh, intensity=0.057) / 1e3, 1)    # BLOOM: 24.7 t
    24.7
    """
    not_negative(energy=energy, intensity=intensity)
    return plain(np.multiply(1.0, energy) / kWh * intensity)


def coolant_flow(power, *, kelvin, density, heat_capacity):
    """Cubic metres a second of coolant that carry `power` watts away while warming by `kelvin`.

    flow = power / (density · heat_capacity · kelvin), density in kg/m³, heat_capacity in J/(kg·K): all that leaves
    comes in first, conservation of energy. :func:`clusterlab.quoted.coolant` has air and water.

    >>> round(coolant_flow(120e3, kelvin=10, density=1000, heat_capacity=4200) * 1e3, 2)     # litres of water a second
    2.86
    """
    not_negative(power=power)
    positive(kelvin=kelvin, density=density, heat_capacity=heat_capacity)
    return plain(np.multiply(1.0, power) / (np.multiply(density, heat_capacity) * kelvin))


# Money


def device_seconds(parameters, tokens, *, mfu, peak_flops, goodput=1.0, factor=6):
    """Device-seconds to train on `tokens`: factor · parameters · tokens / (mfu · peak_flops · goodput).

    For a mixture of experts take the active parameters. `goodput` is the share of the booked time that moved the
    training on for good. ValueError for an MFU or goodput above 1. Source: :func:`clusterlab.compute.training_seconds`.

    >>> round(device_seconds(405e9, 15.6e12, mfu=0.40, peak_flops=989.4e12) / 3600 / 1e6, 1)     # million GPU-hours
    26.6
    """
    positive(mfu=mfu, peak_flops=peak_flops, goodput=goodput)
    for name, value in (("mfu", mfu), ("goodput", goodput)):
        if np.any(np.greater(value, 1)):
            raise ValueError(f"{name}={value!r}: a share, at most 1")
    achieved = np.multiply(1.0, mfu) * peak_flops * goodput
    return plain(training_seconds(parameters, tokens, devices=1, achieved_flops=achieved, factor=factor))


def run_cost(devices, seconds, *, price_per_hour):
    """Dollars for devices over a time: devices · seconds / 3600 · price_per_hour.

    >>> run_cost(1, 2_788_000 * 3600, price_per_hour=2) / 1e6      # DeepSeek-V3, table 1: 5.576 million dollars
    5.576
    """
    not_negative(devices=devices, seconds=seconds, price_per_hour=price_per_hour)
    return plain(np.multiply(1.0, devices) * seconds / hour * price_per_hour)


def token_cost(parameters, *, mfu, peak_flops, price_per_hour, goodput=1.0, factor=6):
    """Dollars for training on one token: its device-seconds at that price.

    >>> round(1e6 * token_cost(405e9, mfu=0.40, peak_flops=989.4e12, price_per_hour=2.69), 2)     # a million tokens
    4.59
    """
    seconds = device_seconds(parameters, 1, mfu=mfu, peak_flops=peak_flops, goodput=goodput, factor=factor)
    return run_cost(1, seconds, price_per_hour=price_per_hour)


def electricity_cost(energy, *, price_per_kwh):
    """Dollars for an energy in joules.

    >>> electricity_cost(1.59e9 * kWh, price_per_kwh=0.078) / 1e6
    124.02
    """
    not_negative(energy=energy, price_per_kwh=price_per_kwh)
    return plain(np.multiply(1.0, energy) / kWh * price_per_kwh)


def capital_per_hour(purchase, *, life, interest=0.0):
    """Dollars an hour, used or not, that pay a purchase back over `life` seconds at a yearly `interest`.

    Equal payments: purchase · r / (1 − (1 + r)^−n) a year over n = life/year years; purchase / n without interest.

    >>> round(capital_per_hour(40_000, life=4 * year), 3), round(capital_per_hour(40_000, life=4 * year, interest=0.1), 3)
    (1.141, 1.44)
    """
    positive(life=life)
    not_negative(purchase=purchase, interest=interest)
    years, rate = np.divide(life, year), np.multiply(1.0, interest)
    safe = np.where(rate > 0, rate, 1.0)
    share = np.where(rate > 0, safe / -np.expm1(-years * np.log1p(safe)), 1 / years)     # exact for tiny rates too
    return plain(np.multiply(1.0, purchase) * share / (year / hour))


def owned_per_hour(purchase, *, life, use, interest=0.0, upkeep=0.0, power, share=1.0, pue=1.0, price_per_kwh):
    """Dollars for each *used* hour of a device one owns: (capital + upkeep) / use + electricity.

    purchase  dollars a device, network and building included if you pay for them
    use       share of all hours in which it works: capital and upkeep are paid in the others too
    upkeep    share of the purchase paid each year for space, repairs and people
    power, share, pue  as in :func:`run_energy`, drawn in used hours only

    >>> cost = dict(life=4 * year, power=1275, share=0.66, pue=1.2, price_per_kwh=0.08)
    >>> round(owned_per_hour(40_000, use=1.0, **cost), 2), round(owned_per_hour(40_000, use=0.5, **cost), 2)
    (1.22, 2.36)
    """
    _use(use)
    standing = _standing(purchase, life, interest, upkeep)
    return plain(standing / use + _running(power, share, pue, price_per_kwh))


def break_even(purchase, *, rent_per_hour, life, interest=0.0, upkeep=0.0, power, share=1.0, pue=1.0, price_per_kwh):
    """Share of all hours that a device must work for owning to cost as little as renting for those hours.

    use = (capital + upkeep an hour) / (rent − electricity an hour). Above 1: never, renting is cheaper even for a
    device that never rests; infinite where the rent does not even pay the electricity. Arguments: owned_per_hour().

    >>> cost = dict(life=4 * year, power=1275, share=0.66, pue=1.2, price_per_kwh=0.08)
    >>> round(break_even(40_000, rent_per_hour=2.36, **cost), 2)
    0.5
    """
    positive(rent_per_hour=rent_per_hour)
    saved = np.multiply(1.0, rent_per_hour) - _running(power, share, pue, price_per_kwh)
    standing = _standing(purchase, life, interest, upkeep)
    return plain(np.where(saved > 0, standing / np.where(saved > 0, saved, 1.0), np.inf))


def _standing(purchase, life, interest, upkeep):
    not_negative(upkeep=upkeep)
    return capital_per_hour(purchase, life=life, interest=interest) + np.multiply(purchase, upkeep) / (year / hour)


def _running(power, share, pue, price_per_kwh):
    return electricity_cost(run_energy(1, hour, power=power, share=share, pue=pue), price_per_kwh=price_per_kwh)


def yearly_growth(before, after, years):
    """The constant growth a year that leads from one value to another: (after / before)^(1/years) − 1.

    >>> f"{yearly_growth(415, 945, 6):.1%}"
    '14.7%'
    """
    positive(before=before, after=after, years=years)
    return plain((np.multiply(1.0, after) / before) ** (1 / np.multiply(1.0, years)) - 1)


# Which input matters


def elasticity(function, name, **inputs):
    """Per cent by which the result moves when the input `name` rises by one per cent: d ln f / d ln x.

    A central difference over ± 0.1 %. 1 or −1 for a factor of a product; near 0 for what hardly matters.
    LookupError for an input that is not given, ValueError for one that is not positive.

    >>> round(elasticity(token_cost, "mfu", parameters=8e9, mfu=0.4, peak_flops=1e15, price_per_hour=3), 3)
    -1.0
    """
    _known(name, inputs)
    positive(**{name: inputs[name]})
    low, high = (function(**inputs | {name: inputs[name] * factor}) for factor in (1 / 1.001, 1.001))
    return float(np.log(high / low) / (2 * np.log(1.001)))


def tornado(function, ranges, **inputs):
    """What each input's range does to the result, all others as given: [(name, result at low, result at high)].

    `ranges` is {name: (low, high)}. The widest swing, as a ratio, comes first: drawn as bars it looks like a tornado.

    >>> rows = tornado(token_cost, {"price_per_hour": (2, 4), "mfu": (0.3, 0.45)}, parameters=8e9, mfu=0.4,
    ...                peak_flops=1e15, price_per_hour=3)
    >>> [(name, round(high / low, 2)) for name, low, high in rows]
    [('price_per_hour', 2.0), ('mfu', 0.67)]
    """
    rows = []
    for name, (low, high) in ranges.items():
        _known(name, inputs)
        rows.append((name, function(**inputs | {name: low}), function(**inputs | {name: high})))
    return sorted(rows, key=lambda row: -abs(np.log(row[2] / row[1])))


def _known(name, inputs):
    if name not in inputs:
        raise LookupError(f"input {name!r} is not given; given: {', '.join(inputs)}")


def _pue(pue):
    if not np.all(np.greater_equal(pue, 1)):
        raise ValueError(f"pue={pue!r}: energy of the building over energy of its computers, at least 1")


def _use(use):
    positive(use=use)
    if np.any(np.greater(use, 1)):
        raise ValueError(f"use={use!r}: a share of all hours, at most 1")
