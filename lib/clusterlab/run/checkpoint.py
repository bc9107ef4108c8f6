"""Checkpoints that can be trusted: sharded, atomic, checked.

What is torch's and what is ours: `torch.distributed.checkpoint` (DCP) decides which rank writes which shard, writes the
shards, and reads back whatever slices another number of ranks needs. It has no notion of a *whole* checkpoint: a crash
in the middle, a file cut short or a flipped bit are found late or never. So around it stand a few lines of our own:

    write to a folder named .partial  →  every file and the folder forced to disk  →  manifest with the SHA-256 of every
    file and of itself  →  rename.  What has its final name is complete; `load` believes sums, not names.

    step-00000012/          a second checkpoint of a step is step-00000012.2: nothing is ever overwritten
      manifest.json         step, world size, versions, tensors (shape, dtype, shards' offsets), loader, schedule, sums
      .metadata  __0_0.distcp  __1_0.distcp …                                                     what DCP wrote
      rng-0.json  rng-1.json …                                            state of each rank's random number generators

Sources: `torch.distributed.checkpoint` reference; Pillai et al. OSDI 2014, "All File Systems Are Not Created Equal",
on why the file *and* its folder need an fsync around the rename.
"""

import hashlib
import json
import math
import os
import platform
import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from clusterlab.run.snapshot import CheckpointError, Snapshot, copied, flat, local, restore, snapshot

FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")


@dataclass(frozen=True)
class Saved:
    """One checkpoint, as one rank saw it. Seconds are those of the write with its commit, and those of them (or, in the
    background, of the snapshot) in which training stood still."""

    path: str
    step: int
    written: int            # bytes of this rank's files
    total: int              # bytes of all files: tensors, and what describes them
    state: int              # bytes of the tensors alone, each counted once
    seconds: float
    blocked: float


@dataclass(frozen=True)
class Loaded:
    """`refused` lists what newer checkpoints were passed over, and why; `rng` is "restored", or "reseeded" when the
    number of ranks has changed and no saved generator belongs to any of them."""

    path: str
    step: int
    world_size: int
    rng: str
    refused: tuple = ()


def save(root, step, state, *, keep=2, verify=False, group=None):
    """Write a checkpoint of all ranks' state under the folder `root` and return `Saved`; every rank calls it.

    The newest `keep` checkpoints stay. `verify` is a test restore before the commit: the shards are read back from
    disk and must have the bits in memory. Raises CheckpointError on every rank if any of them failed; the older
    checkpoints are untouched then.
    """
    start = time.perf_counter()
    saved = write(root, snapshot(step, state), keep, verify, group)
    return replace(saved, blocked=time.perf_counter() - start)


def write(root, saved, keep, verify, group):
    """Shards, sums, test restore, manifest, commit: what `save` and the background writer share."""
    if keep < 1:
        raise ValueError(f"keep={keep!r}: want 1 or more")
    start, rank, root = time.perf_counter(), dist.get_rank(group), Path(root)
    partial = root / f"step-{saved.step:08d}.partial"
    with _Together(group, f"{partial}: can not start"):
        if rank == 0:
            shutil.rmtree(partial, ignore_errors=True)              # left by a crash
            partial.mkdir(parents=True)
    try:
        dcp.save(saved.tensors, storage_writer=dcp.FileSystemWriter(partial), process_group=group)
    except dcp.CheckpointException as error:
        raise CheckpointError(f"{partial}: shards not written: {error}") from error
    with _Together(group, f"{partial}: not all written") as all_ranks:
        _write_synced(partial / f"rng-{rank}.json", json.dumps(saved.rng).encode())
        mine = [partial / f"rng-{rank}.json", *partial.glob(f"__{rank}_*"), *([partial / ".metadata"] * (rank == 0))]
        all_ranks.value = files = {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in mine}
    written, files = _size(files), {name: entry for part in all_ranks.values for name, entry in part.items()}
    with _Together(group, f"{partial}: test restore failed"):
        if verify:
            _test_restore(partial, saved, group)
    with _Together(group, f"{partial}: not committed") as all_ranks:
        if rank == 0:
            manifest = _manifest(partial, saved, files, dist.get_world_size(group))
            all_ranks.value = str(_commit(root, partial, manifest, keep)), state_bytes(manifest)
    path, state = all_ranks.values[0]
    return Saved(path, saved.step, written, _size(files), state, time.perf_counter() - start, 0.0)


def _size(files):
    return sum(entry["bytes"] for entry in files.values())


def state_bytes(manifest):
    """Bytes of all tensors of a checkpoint, each counted once."""
    return sum(math.prod(t["shape"]) * getattr(torch, t["dtype"]).itemsize for t in manifest["tensors"].values())


class _Together:
    """A block that every rank runs: if it fails on one, it fails on all, with the reason of the first."""

    def __init__(self, group, what):
        self.group, self.what, self.value, self.values = group, what, None, []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is not None and not isinstance(error, OSError | CheckpointError):
            return
        verdicts = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(verdicts, (str(error) if error else None, self.value), group=self.group)
        failed = [f"rank {rank}: {reason}" for rank, (reason, _) in enumerate(verdicts) if reason]
        if failed:
            raise CheckpointError(f"{self.what}: {failed[0]}") from error
        self.values = [value for _, value in verdicts]


def _test_restore(path, saved, group):
    fresh = copied(saved.tensors)
    for tensor in flat(fresh).values():
        local(tensor).zero_()
    dcp.load(fresh, storage_reader=dcp.FileSystemReader(path), process_group=group)
    want = flat(saved.tensors)
    for name, tensor in flat(fresh).items():
        if not torch.equal(_bits(tensor), _bits(want[name])):
            raise CheckpointError(f"tensor {name} reads back with other bits than it has in memory")


def _bits(tensor):
    return local(tensor).detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _manifest(partial, saved, files, world_size):
    metadata = dcp.FileSystemReader(partial).read_metadata()
    tensors = {name: {"dtype": str(entry.properties.dtype).removeprefix("torch."), "shape": list(entry.size),
                      "shards": [{"offsets": list(c.offsets), "sizes": list(c.sizes)} for c in entry.chunks]}
               for name, entry in metadata.state_dict_metadata.items() if hasattr(entry, "chunks")}
    return {"format": FORMAT, "step": saved.step, "world_size": world_size, "parts": saved.parts, "tensors": tensors,
            "versions": {"torch": torch.__version__, "python": platform.python_version()}, "files": files}


def _commit(root, partial, manifest, keep):
    text = json.dumps(manifest)
    _write_synced(partial / "manifest.json", json.dumps({"sha256": _sha256(text.encode()), "manifest": text}).encode())
    _sync_folder(partial)
    older = [path for path in checkpoints(root) if path.name.startswith(f"step-{manifest['step']:08d}")]
    again = f".{int(_NAME.fullmatch(older[0].name)[2] or 1) + 1}" if older else ""
    final = root / f"step-{manifest['step']:08d}{again}"
    partial.rename(final)
    _sync_folder(root)
    for path in checkpoints(root)[keep:]:
        shutil.rmtree(path, ignore_errors=True)
    return final


def _write_synced(path, data):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _sha256(what):
    if isinstance(what, bytes):
        return hashlib.sha256(what).hexdigest()
    with open(what, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checkpoints(root):
    """Folders that claim to be checkpoints, newest first. Whether one is good, `check` says."""
    found = [(int(name[1]), int(name[2] or 1), path) for path in Path(root).glob("step-*")
             if (name := _NAME.fullmatch(path.name))]
    return [path for *_, path in sorted(found, reverse=True)]


def read_manifest(path):
    """The manifest of one checkpoint, after its own sum was checked."""
    file = Path(path) / "manifest.json"
    try:
        outer = json.loads(file.read_bytes())
        raw, want = outer["manifest"].encode(), outer["sha256"]
    except FileNotFoundError:
        raise CheckpointError(f"{file}: expected a manifest, found none") from None
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise CheckpointError(f"{file}: expected a manifest, found {file.stat().st_size} bytes that are none: "
                              f"{error}") from None
    if (found := _sha256(raw)) != want:
        raise CheckpointError(f"{file}: expected sha256 {want[:16]}…, found {found[:16]}…")
    manifest = json.loads(raw)
    if manifest["format"] != FORMAT:
        raise CheckpointError(f"{file}: expected format {FORMAT}, found {manifest['format']}")
    return manifest


def check(path, share=0, shares=1):
    """Raise CheckpointError unless the checkpoint at `path` is whole; returns its manifest. Ranks split the files."""
    manifest = read_manifest(path)
    for name in sorted(manifest["files"])[share::shares]:
        entry, file = manifest["files"][name], Path(path) / name
        if not file.is_file():
            raise CheckpointError(f"{file}: expected {entry['bytes']} bytes, found no file")
        if (size := file.stat().st_size) != entry["bytes"]:
            raise CheckpointError(f"{file}: expected {entry['bytes']} bytes, found {size}")
        if (found := _sha256(file)) != entry["sha256"]:
            raise CheckpointError(f"{file}: expected sha256 {entry['sha256'][:16]}…, found {found[:16]}…")
    return manifest


def latest(root):
    """Path of the newest good checkpoint under `root`, every sum checked here and now, or None if there is none."""
    for path in checkpoints(root):
        try:
            check(path)
        except CheckpointError:
            continue
        return path
    return None


def load(root, state, *, group=None):
    """Restore the newest good checkpoint under `root`, whatever number of ranks wrote it; returns `Loaded`.

    Every rank calls it. Raises CheckpointError if `root` has none that is good, with the fault of each.
    """
    rank, ranks, refused = dist.get_rank(group), dist.get_world_size(group), []
    with _Together(group, f"{root}: no list of checkpoints") as all_ranks:
        all_ranks.value = [str(path) for path in checkpoints(root)] if rank == 0 else None
    for path in all_ranks.values[0]:
        try:
            with _Together(group, "refused"):
                manifest = check(path, rank, ranks)
        except CheckpointError as error:
            refused.append(str(error))
            continue
        same = manifest["world_size"] == ranks
        blank = snapshot(manifest["step"], state)
        try:
            dcp.load(blank.tensors, storage_reader=dcp.FileSystemReader(path), process_group=group)
        except dcp.CheckpointException as error:                    # whole, but of another model
            raise CheckpointError(f"{path}: does not fit this model: {error}") from error
        rng = json.loads((Path(path) / f"rng-{rank}.json").read_text()) if same else None
        restore(state, Snapshot(manifest["step"], blank.tensors, manifest["parts"], rng), rng=same)
        if not same:
            torch.manual_seed(1_000_003 * manifest["step"] + rank)   # reproducible, if not the same
        kept = "restored" if same else "reseeded"
        return Loaded(path, manifest["step"], manifest["world_size"], kept, tuple(refused))
    raise CheckpointError(f"{root}: expected a good checkpoint, found "
                          f"{'none' if not refused else f'{len(refused)} bad: ' + '; '.join(refused)}")
