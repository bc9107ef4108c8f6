"""What a checkpoint must hold: what is left out tells at the loss that first depends on it."""

import pytest
from clusterlab.run.forgetting import PARTS, forget
from clusterlab.run.job import Job

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]

# A loss depends on weights, batch and dropout before its own step; moments and learning rate act on the weights after
# it; the rate of the first resumed step is still the one in the optimizer's settings.
FIRST_WRONG = {"nothing": None, "weights": 0, "loader": 0, "generators": 0, "moments": 1, "schedule": 2}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_each_part_is_missed_when_it_is_first_needed(strategy):
    assert forget(job=Job(strategy=strategy), steps=6) == FIRST_WRONG


@pytest.mark.slow
def test_without_dropout_nobody_misses_the_generators():
    assert forget(("generators", "loader"), job=Job(dropout=0.0), steps=5) == {"generators": None, "loader": 0}


def test_bad_arguments_are_named():
    assert set(PARTS) == set(FIRST_WRONG)
    with pytest.raises(ValueError, match="'moment'"):
        forget(("moment",))
    for saved in (0, 8):
        with pytest.raises(ValueError, match=f"saved={saved}"):
            forget(saved=saved, steps=8)
