"""The judge of tensor-parallel layers: right slices pass, gathered weights are seen, wrong ones are named."""

import pytest
import torch
import torch.distributed as dist
from clusterlab.run import judge
from clusterlab.run.judge_layers import _right, _whole, mlp_trial


def right(x, a, b):
    y = (x @ a).relu() @ b
    dist.all_reduce(y)
    return y


def gradient(x, a, b, g):
    d = ((g @ b.T) * (x @ a > 0)) @ a.T
    dist.all_reduce(d)
    return d


def partial(x, a, b):
    return (x @ a).relu() @ b


def gathered(x, a, b):
    n = dist.get_world_size()
    whole_a, whole_b = [torch.empty_like(a) for _ in range(n)], [torch.empty_like(b) for _ in range(n)]
    dist.all_gather(whole_a, a)
    dist.all_gather(whole_b, b)
    return (x @ torch.cat(whole_a, 1)).relu() @ torch.cat(whole_b)


@pytest.mark.parametrize("ranks, ffn", [(1, 4), (2, 12), (4, 8)])
def test_one_all_reduce_is_right_and_counted(ranks, ffn):
    trial = mlp_trial(right, ranks, ffn)
    assert not trial.fault and trial.calls == [["all_reduce", 6 * 8 * 8]]


def test_the_gradient_is_autograd_s():
    x, a, b, g = _whole(12)
    x.requires_grad_()
    (((x @ a).relu() @ b) * g).sum().backward()
    assert torch.equal(_right(12, True), x.grad)
    trial = mlp_trial(gradient, 2, 12, backward=True)
    assert not trial.fault and trial.calls == [["all_reduce", 6 * 8 * 8]]


def test_a_partial_sum_is_named_and_a_gather_seen():
    assert "on rank 0 element" in mlp_trial(partial, 2, 12).fault
    trial = mlp_trial(gathered, 2, 12)
    assert not trial.fault and [kind for kind, _ in trial.calls] == ["all_gather", "all_gather"]
    assert "not 6 × 8" in mlp_trial(lambda x, a, b: x @ a, 2, 12).fault


def test_no_tensor_is_a_fault():
    with pytest.raises(judge.Fault, match="two dimensions"):
        mlp_trial(lambda x, a, b: 3.0, 1, 4)
