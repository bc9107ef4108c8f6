"""Fabrics of one kind for any size: what a price for each GPU is compared on.

>>> [sized("fat tree", gpus).switches for gpus in (64, 2048, 65536, 131072)]
[1, 96, 5120, 14336]
"""

from clusterlab.clos import Clos
from clusterlab.topology import Fabric, dragonfly

KINDS = ("fat tree", "4:1 above 1,024", "rail-only", "dragonfly")


def sized(kind, gpus, *, radix=64, rails=8):
    """A fabric of ``kind`` for ``gpus`` endpoints, of switches with ``radix`` ports; servers have ``rails`` GPUs.

    fat tree           as few tiers as hold them, nothing oversubscribed
    4:1 above 1,024    three tiers; what leaves a pod of radix²/4 GPUs has a quarter of the bandwidth
    rail-only          a fat tree for each rail
    dragonfly          p = h = radix/4 endpoints and global cables a router, radix/2 routers a group

    ``gpus`` fill the units they come in (leaves of radix/2, pods, groups). Raises ValueError where they do not, for a
    size the kind does not reach, LookupError for another kind.

    >>> sized("rail-only", 131072).layout.tiers, sized("dragonfly", 131072).switches
    ((4096, 4096, 2048), 8192)
    """
    if kind not in KINDS:
        raise LookupError(f"kind={kind!r}: {', '.join(KINDS)} are allowed")
    half = radix // 2
    if kind == "rail-only":
        if gpus % rails:
            raise ValueError(f"gpus={gpus}: a multiple of rails={rails} is allowed")
        return Fabric(kind, Clos(*_tree(gpus // rails, radix), radix, rails=rails, planes=rails))
    if kind == "dragonfly":
        groups, rest = divmod(gpus, half * (radix // 4))
        if rest or groups < 2:
            raise ValueError(f"gpus={gpus}: whole groups of {half * (radix // 4)}, two or more, are allowed")
        return Fabric(kind, dragonfly(radix // 4, p=radix // 4, a=half, groups=groups).layout)
    if kind == "fat tree":
        return Fabric(kind, Clos(*_tree(gpus, radix), radix))
    pods, rest = divmod(gpus, half * half)
    if rest or not 2 <= pods <= radix:
        raise ValueError(f"gpus={gpus}: 2 to {radix} pods of {half * half} are allowed")
    parallel = _parallel(half // 4, pods, radix)
    return Fabric(kind, Clos((half, half, pods), (1, half, half // 4 // parallel), (1, 1, parallel), radix))


def _tree(endpoints, radix):
    """children, parents, parallel of a full tree in as few tiers as hold the endpoints."""
    half, below = radix // 2, []
    while endpoints > radix:
        endpoints, rest = divmod(endpoints, half)
        if rest:
            raise ValueError(f"whole switches of {half} below are allowed, and {rest} are over")
        below.append(half)
    if not below:
        return (endpoints,), (1,), (1,)
    parallel = _parallel(half, endpoints, radix)
    middle = (half,) * (len(below) - 1)
    return (*below, endpoints), (1, *middle, half // parallel), (1,) * len(below) + (parallel,)


def _parallel(up, children, radix):
    """The most cables from one switch to each above it: a divisor of its uplinks, within the ports above."""
    return next(n for n in range(up, 0, -1) if up % n == 0 and n * children <= radix)
