"""The runs of the chapters on the machine and on formats: the walk is one cycle, tiles change nothing, a scale saves."""

import array

import numpy as np
import pytest
import torch
from clusterlab.run.chase_probe import _walk, chase, cycle
from clusterlab.run.scaled_training import learn
from clusterlab.run.tiling import FACTOR, sweeps


@pytest.mark.parametrize("count", [1, 2, 3, 64, 1000])
def test_the_walk_visits_every_place_once(count):
    successor, at, seen = cycle(count, seed=count), 0, set()
    for _ in range(count):
        seen.add(at)
        at = int(successor[at])
    assert at == 0 and len(seen) == count


def test_a_walk_takes_as_many_steps_as_asked():
    places = array.array("q", [1, 2, 3, 0])
    assert _walk(places, 0, 6)[0] == 2 and _walk(places, 3, 1)[0] == 0


def test_rows_of_the_chase():
    small, large = chase([2**12, 2**16], hops=500, laps=3)
    assert (small["working_set"], large["working_set"]) == (2**12, 2**16)
    for row in (small, large):
        assert 0 < row["lowest"] <= row["median"] <= row["highest"]
    with pytest.raises(ValueError, match="sizes has 64"):
        chase([64])


@pytest.mark.parametrize("tile", [4, 1000, 4096, 2**16])
def test_tiles_change_the_order_only(tile):
    run = sweeps(2**16, passes=3, tile=tile, laps=1)
    one = torch.tensor(1.0)
    for _ in range(3):
        one = one * FACTOR
    assert run.total == one.double().item() * 2**14 and run.bytes == 2 * 3 * 2**16 and run.seconds > 0


@pytest.mark.parametrize("tile", [2, 2**17])
def test_a_tile_lies_within_the_array(tile):
    with pytest.raises(ValueError, match=f"tile is {tile}"):
        sweeps(2**16, tile=tile)


def test_a_loss_scale_saves_what_underflows():
    exact, lost, saved, bf16 = learn("fp32"), learn("fp16"), learn("fp16", scale=2.0**16), learn("bf16")
    assert lost["zeros"] == 1.0 and exact["zeros"] == saved["zeros"] == bf16["zeros"] == 0.0
    assert np.allclose(saved["losses"], exact["losses"], atol=0.02) and np.allclose(bf16["losses"], exact["losses"], atol=0.05)
    assert exact["losses"][-1] < 0.15 and lost["losses"][-1] > 0.25
    assert learn("fp16", tokens=256)["zeros"] == 0.0             # a mean over few tokens underflows nowhere


def test_the_scale_cancels_exactly_in_fp32():
    assert learn("fp32", scale=2.0**10, steps=20)["losses"] == learn("fp32", steps=20)["losses"]


@pytest.mark.parametrize("call, message", [(lambda: learn("fp8 e4m3"), "fp8 e4m3"), (lambda: learn("fp16", scale=0), "scale is 0")])
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
