"""Checkpoints written while training goes on: the step pays for a copy in memory, a thread for the rest."""

import threading
import time
from dataclasses import replace

import torch.distributed as dist

from clusterlab.run.checkpoint import write
from clusterlab.run.snapshot import snapshot


class Background:
    """Checkpoints written while training goes on: `save` copies the state and returns, a thread writes the copy.

    The thread talks over a gloo group of its own: two threads must not share one. At most one write is under way; what
    the training waits for the one before counts as blocked. A checkpoint exists once it is committed, not before.
    """

    def __init__(self, root, *, keep=2, verify=False):
        self.root, self.keep, self.verify = root, keep, verify
        self.group, self.thread, self.outcome = dist.new_group(backend="gloo"), None, None

    def save(self, step, state):
        """Snapshot the state; returns the seconds for which training stood still."""
        start = time.perf_counter()
        self.wait()
        saved = snapshot(step, state, copy=True)
        blocked = time.perf_counter() - start
        self.thread = threading.Thread(target=self._run, args=(saved, blocked))
        self.thread.start()
        return blocked

    def wait(self):
        """Wait for the write under way; returns its `Saved` (None before the first) or raises what it failed with."""
        if self.thread:
            self.thread.join()
            self.thread = None
            if isinstance(self.outcome, BaseException):
                raise self.outcome
        return self.outcome

    def _run(self, saved, blocked):
        try:
            self.outcome = replace(write(self.root, saved, self.keep, self.verify, self.group), blocked=blocked)
        except BaseException as error:  # noqa: BLE001 (raised by wait)
            self.outcome = error
