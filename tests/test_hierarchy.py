"""The bandwidth hierarchy against a chip's units and clock, and against the order of its levels."""

import itertools

import pytest
from clusterlab import hierarchy


def test_levels_on_the_chip_follow_from_its_units_and_clock():
    """132 multiprocessors of 128 fp32 units and 32 banks of four bytes, at 1.98 GHz."""
    assert hierarchy.level("registers").bandwidth == pytest.approx(132 * 128 * 3 * 4 * 1.98e9, rel=0.01)
    assert hierarchy.level("shared memory, L1").bandwidth == pytest.approx(132 * 32 * 4 * 1.98e9, rel=0.01)


def test_every_level_is_slower_than_the_one_before_and_says_whence():
    levels = hierarchy.levels()
    assert all(near.bandwidth > far.bandwidth for near, far in itertools.pairwise(levels))
    assert all(level.source and level.notes and level.counts for level in levels)


def test_unknown_levels_and_sizes():
    with pytest.raises(LookupError, match="NVLink 4"):
        hierarchy.level("NVLink")
    with pytest.raises(ValueError, match="size=-1"):
        hierarchy.level("HBM").seconds(-1)
    with pytest.raises(ValueError, match="bandwidth"):
        hierarchy.Level("nothing", 0.0, "read")
