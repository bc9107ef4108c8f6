"""A small network really trained in 16 bits on a loss that is a mean over millions of tokens, with and without a loss scale.

The network sees `batch` of the `tokens` of one step and stands for all of them: what it adds to the weights' gradients is
multiplied by tokens ÷ batch, in fp32, as an accumulation over all micro-batches of the step would give. Weights are
kept in fp32; products and their gradients are formed in the format named. Source of the method: Micikevicius et al.
2018, arXiv:1710.03740, sections 3.1 and 3.2.
"""
import torch

from clusterlab.run.formats import FORMATS


def learn(name, *, scale=1.0, tokens=2**24, steps=100, rate=1.0, width=32, batch=256) -> dict:
    """Train on x₀·x₁ > 0 in the format `name`: the losses, and which share of the first layer's gradients is 0 at first.

    Raises ValueError for a format torch has no product of, or a scale that is not positive.

    >>> learn("fp16")["zeros"], learn("fp16", scale=2.0**16)["zeros"]
    (1.0, 0.0)
    """
    if name not in ("fp32", "bf16", "fp16"):
        raise ValueError(f"name is {name!r}: want one of fp32, bf16, fp16")
    if not scale > 0:
        raise ValueError(f"scale is {scale!r}: want a positive number")
    dtype, losses, zeros = FORMATS[name], [], None
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 4, generator=draw)
    label = (x[:, 0] * x[:, 1] > 0).long()
    weights = [torch.randn(4, width, generator=draw) / 2, torch.randn(width, 2, generator=draw) / width**0.5]
    for weight in weights:
        weight.requires_grad_()
    for _ in range(steps):
        first, second = (weight.to(dtype) for weight in weights)
        out = torch.relu(x.to(dtype) @ first) @ second
        each = torch.nn.functional.cross_entropy(out.float(), label, reduction="none")
        (each.sum() / tokens * scale).backward()
        losses.append(each.mean().item())
        zeros = (weights[0].grad == 0).float().mean().item() if zeros is None else zeros
        with torch.no_grad():
            for weight in weights:
                weight -= rate * (weight.grad / scale) * (tokens / batch)
                weight.grad = None
    return {"losses": losses, "zeros": zeros}
