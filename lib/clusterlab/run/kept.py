"""What training keeps in memory, really allocated and counted: the states of a recipe, the activations of a layer.

Bytes are counted by storage, so that a view costs nothing and what two tensors share counts once. They are the same on
every machine; only the seconds of `recompute` are this one's.
"""

import time
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from clusterlab.memory import States
from clusterlab.run.model import Block, Decoder, token_losses
from clusterlab.run.timing import threads
from clusterlab.run.torch_private import MemTracker, storage_id
from clusterlab.run.trainer import storage_bytes

GRADIENTS = ("16 bits", "32 bits", "both")
MODES = ("none", "selective", "full")


def states(shape, *, gradients="16 bits", seq=8):
    """One AdamW step in mixed precision; the bytes that weights, gradients and optimizer then hold: a `memory.States`.

    Weights in BF16, an FP32 master and two FP32 moments of each. `gradients`: "16 bits" keeps them as the backward
    pass leaves them (the step widens one tensor at a time); "32 bits" adds them up in FP32 and frees the 16-bit one;
    "both" keeps the two. The optimizer's step counters, one number a tensor, are left out.

    >>> from clusterlab.transformer import Transformer
    >>> tiny = Transformer(layers=1, hidden=8, heads=2, vocab=16)
    >>> held = states(tiny, gradients="32 bits")
    >>> held.total / tiny.parameters(), held.gradients / tiny.parameters()
    (18.0, 4.0)
    """
    if gradients not in GRADIENTS:
        raise ValueError(f"gradients={gradients!r}: one of {', '.join(GRADIENTS)}")
    torch.manual_seed(0)
    model = Decoder(shape).to(torch.bfloat16)
    weights = list(model.parameters())
    masters = [torch.nn.Parameter(w.detach().float()) for w in weights]
    optimizers = [torch.optim.AdamW([master]) for master in masters]        # one each: a step widens one gradient
    tokens = torch.zeros(1, seq, dtype=torch.long)
    token_losses(model(tokens), tokens).backward()
    sums = [] if gradients == "16 bits" else [w.grad.float() for w in weights]
    if gradients == "32 bits":
        for w in weights:
            w.grad = None
    for i, (w, master, optimizer) in enumerate(zip(weights, masters, optimizers, strict=True)):
        master.grad = sums[i] if sums else w.grad.float()
        optimizer.step()
        master.grad = None
        w.data.copy_(master.data)
    moments = [t for o in optimizers for state in o.state.values() for t in state.values() if t.dim()]
    return States(storage_bytes(weights), storage_bytes([*(w.grad for w in weights if w.grad is not None), *sums]),
                  storage_bytes([*masters, *moments]))


@dataclass(frozen=True)
class Pass:
    """A forward and a backward pass through some layers. `gradients` are those of all weights, to compare."""

    kept: int               # bytes that the forward pass saves for the backward pass, weights aside
    peak: int               # most bytes of activations and their gradients at any moment, by torch's tracker
    flops: int
    seconds: float          # of this process on one thread, the fastest lap
    gradients: list

    def same_gradients(self, other):
        """Whether every gradient has the same bits."""
        return all(map(torch.equal, self.gradients, other.gradients))


class Layers(torch.nn.Module):
    """A stack of layers without embedding and head, under one kind of recomputation."""

    def __init__(self, shape, recompute, attention, dropout):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(shape, attention, dropout) for _ in range(shape.layers))
        self.full = recompute == "full"
        for layer in self.layers if recompute == "selective" else ():
            core = layer.attention.written_out
            layer.attention.written_out = partial(checkpoint, core, use_reentrant=False)

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.full else layer(x)
        return x


def kept_bytes(module, x):
    """(bytes that the forward pass of `module` saves for backward, its output); weights do not count."""
    own, saved = {storage_id(p.untyped_storage()) for p in module.parameters()}, {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage_id(storage)] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = module(x)
    return sum(storage.nbytes() for number, storage in saved.items() if number not in own), out


def recompute(shape, mode="none", *, batch=1, seq, attention="eager", dropout=0.1, laps=3):
    """Run the layers of `shape` in BF16 forward and backward under a mode of recomputation and return a `Pass`.

    `mode`: "none", "selective" (the attention core again; eager attention only) or "full" (each layer again from its
    input). torch stops a recomputation when all that was saved is there again: the core's second product is not
    needed. The seed is always the same, so weights, input and dropout are too. Raises ValueError for an unknown mode.

    >>> from clusterlab.transformer import Transformer
    >>> tiny = Transformer(layers=2, hidden=8, heads=2, vocab=1, norm="layer", positions=4)
    >>> none, full = (recompute(tiny, mode, seq=4, laps=1) for mode in ("none", "full"))
    >>> full.kept == 2 * (2 * 4 * 8), none.same_gradients(full)
    (True, True)
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: one of {', '.join(MODES)}")
    if mode == "selective" and attention != "eager":
        raise ValueError(f"attention={attention!r}: a fused kernel keeps no core, so there is nothing to recompute")
    torch.manual_seed(0)
    module = Layers(shape, mode, attention, dropout).to(torch.bfloat16)
    x = torch.randn(batch, seq, shape.hidden, dtype=torch.bfloat16, requires_grad=True)

    def lap():
        module.zero_grad()
        torch.manual_seed(1)
        module(x).float().sum().backward()

    with threads(1):
        torch.manual_seed(1)
        kept, out = kept_bytes(module, x)
        del out
        with FlopCounterMode(display=False) as flops:
            lap()
        tracker = MemTracker()
        tracker.track_external(module)
        with tracker:                           # not within the counter: it holds on to what checkpointing gives back
            lap()
        seconds = min(_seconds(lap) for _ in range(laps))
    (at_peak,) = tracker.get_tracker_snapshot("peak").values()
    peak = sum(size for kind, size in at_peak.items() if str(kind).rsplit(".")[-1] in ("ACT", "TEMP"))
    return Pass(kept, peak, flops.get_total_flops(), seconds, [p.grad for p in module.parameters()])


def _seconds(call):
    """Of this process: what other programs do meanwhile does not count."""
    start = time.process_time()
    call()
    return time.process_time() - start
