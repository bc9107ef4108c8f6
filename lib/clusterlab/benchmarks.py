"""What a benchmark's numbers say: how well more devices were used, and how batch size turns into time to quality.

>>> from clusterlab.benchmarks import scaling_efficiency
>>> round(scaling_efficiency(2048, 5.54, 8192, 2.02), 2)        # four times the devices, 2.74 times as fast
0.69
"""

import numpy as np

from clusterlab.extremes import plain, positive


def scaling_efficiency(devices, seconds, more_devices, fewer_seconds):
    """Share of the added devices that became speed: (devices · seconds) / (more_devices · fewer_seconds).

    Both times are to the same quality, so it is also the inverse of the growth in device-hours. Above 1 something else
    changed as well: software, precision, batch. ValueError unless all are positive and there are more devices.

    >>> scaling_efficiency(8, 40, 16, 25)
    0.8
    """
    positive(devices=devices, seconds=seconds, more_devices=more_devices, fewer_seconds=fewer_seconds)
    if np.any(np.less(more_devices, devices)):
        raise ValueError(f"more_devices={more_devices!r}: fewer than devices={devices!r}")
    return plain(np.multiply(1.0, devices) * seconds / (np.multiply(1.0, more_devices) * fewer_seconds))


def steps_to_quality(batch, *, least_steps, critical_batch):
    """Steps to a given loss: least_steps · (1 + critical_batch / batch), each batch with its best learning rate.

    Below the critical batch twice the batch means half the steps; far above it hardly fewer. Samples are steps · batch
    = least_steps · (batch + critical_batch). Source: McCandlish et al. 2018, arXiv:1812.06162, whose trade-off
    (S/S_min − 1)(E/E_min − 1) = 1 between steps S and samples E this is.

    >>> steps_to_quality(100, least_steps=30, critical_batch=300), steps_to_quality(300, least_steps=30, critical_batch=300)
    (120.0, 60.0)
    """
    positive(batch=batch, least_steps=least_steps, critical_batch=critical_batch)
    return plain(np.multiply(1.0, least_steps) * (1 + np.multiply(1.0, critical_batch) / batch))


def fit_critical_batch(batch, steps, larger_batch, fewer_steps):
    """(least steps, critical batch) of the law through two counted runs: two equations for two unknowns.

    ValueError unless the larger batch took fewer steps and more samples, as the law says.

    >>> fit_critical_batch(100, 120, 300, 60)
    (30.0, 300.0)
    """
    positive(batch=batch, steps=steps, larger_batch=larger_batch, fewer_steps=fewer_steps)
    samples, more_samples = steps * batch, fewer_steps * larger_batch
    if not (fewer_steps < steps and more_samples > samples):              # so the batch is larger as well
        raise ValueError(f"{steps} steps of {batch} and {fewer_steps} of {larger_batch}: want fewer steps and more "
                         "samples with the larger batch")
    least = (more_samples - samples) / (larger_batch - batch)     # steps · batch = least · (batch + critical)
    return least, samples / least - batch


def middle_mean(values):
    """Mean without the lowest and the highest: how MLPerf makes one score of several runs, whose seeds differ.

    ValueError for fewer than three. Source: MLPerf, training overview, https://mlperf.org/training-overview/.

    >>> middle_mean([30, 31, 35, 29, 90])
    32.0
    """
    values = sorted(values)
    if len(values) < 3:
        raise ValueError(f"values={values!r}: want at least three runs")
    return sum(values[1:-1]) / (len(values) - 2)
