"""Several tasks in one launch give what each gives alone."""

import pytest
from clusterlab.run.parallel import train
from clusterlab.run.trials import train_each


def test_each_is_what_it_is_alone():
    found = train_each(2, {"right": ("ddp", {"batch": 5}), "wrong": ("ddp", {"batch": 5, "mistake": "equal-weights"})})
    assert found["right"].bitwise and not found["wrong"].bitwise
    alone = train("ddp", 2, batch=5, mistake="equal-weights")
    assert (found["wrong"].losses, found["wrong"].calls) == (alone.losses, alone.calls)


def test_what_cannot_be_is_named_before_a_rank_starts():
    with pytest.raises(LookupError, match="a: 'dpp' is unknown"):
        train_each(2, {"a": ("dpp", {})})
    with pytest.raises(LookupError, match="'mash-order'"):
        train_each(4, {"a": ("tensor-fsdp", {"mistake": "mash-order"})})
    with pytest.raises(ValueError, match="not divisible"):
        train_each(3, {"a": ("tensor-fsdp", {})})
