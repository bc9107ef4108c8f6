"""Flow control in slots: what a link does when the other end is full. Credits, pause frames, congestion marks.

A slot is the time of one packet on a host's link (4 KiB at 50 GB/s: 82 ns). In every slot a host has a packet ready.

- ``"credits"`` (InfiniBand): the receiver grants a credit for each free place of its buffer; a packet needs one.
- ``"pause"`` (Ethernet's priority flow control, PFC): send until the receiver says stop. Its buffer keeps `headroom` for
  what is on the way until the stop takes effect.
- ``"none"``: send; what finds no room is lost.

`one_link` is one cable into one buffer. `incast` is two switches, too many senders to one receiver, and a bystander.

>>> stalled = [False] * 40 + [True] * 60
>>> one_link("none", room=8, delay=3, drain=stalled).dropped, one_link("credits", room=8, delay=3, drain=stalled).dropped
(30, 0)
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

CONTROLS = ("credits", "pause", "none")


def headroom_packets(delay, rate=1):
    """Places a buffer must keep free when it says stop, so that nothing is lost: 2·delay·rate - 1.

    The stop takes `delay` slots to the sender, and what has left until then arrives for `delay` slots more; `rate`
    packets come in a slot. Errors: ValueError for a delay or rate that is no whole number from 1.

    >>> headroom_packets(3), headroom_packets(3, rate=4)
    (5, 23)
    """
    return 2 * _whole("delay", delay) * _whole("rate", rate) - 1


@dataclass(frozen=True)
class LinkRun:
    """What became of the packets of `one_link`: sent = delivered + dropped + waiting; `queue` is the buffer, by slot."""

    sent: int
    delivered: int
    dropped: int
    waiting: int
    queue: np.ndarray


def one_link(control, *, room, delay, drain, headroom=None):
    """A host that always has a packet, a cable of `delay` slots, a buffer of `room` packets; a LinkRun.

    `drain` says for each slot whether the receiver takes a packet, and so how many slots there are. With credits the
    rate is min(1, room / (2·delay)): a place is free again one round trip after its packet left. `headroom` (pause
    only) defaults to `headroom_packets(delay)`.

    Errors: ValueError for an unknown control, room or delay below 1, headroom not below room.

    >>> one_link("credits", room=4, delay=4, drain=[True] * 1000).delivered
    500
    """
    hop = _Hop(control, room, delay, headroom=headroom)
    queue, sent, dropped, delivered, seen = deque(), 0, 0, 0, []
    for slot, takes in enumerate(drain):
        got, lost = hop.arrive(slot)
        queue.extend(got)
        dropped += len(lost)
        if takes and queue:
            queue.popleft()
            hop.release(slot)
            delivered += 1
        hop.hear(slot)
        if hop.open:
            hop.send(slot, 0)
            sent += 1
        seen.append(len(queue))
    return LinkRun(sent, delivered, dropped, len(queue) + len(hop.cable), np.array(seen, dtype=int))


@dataclass(frozen=True)
class Incast:
    """What became of the packets of `incast`, by sender; the bystander is the last. One row a slot in the arrays.

    sent = delivered + dropped + waiting for each sender. `queue`: packets waiting for the busy receiver in its switch.
    `stopped`: slots in which a sender had to wait for the network. `marks`: packets marked. `rates`: what the senders
    allow themselves, packets a slot.
    """

    sent: np.ndarray
    delivered: np.ndarray
    dropped: np.ndarray
    waiting: np.ndarray
    stopped: np.ndarray
    queue: np.ndarray
    marks: int
    arrivals: np.ndarray
    rates: np.ndarray

    @property
    def bystander(self):
        """Packets a slot that the bystander delivers, over the second half of the run."""
        return float(self.arrivals[len(self.arrivals) // 2:, -1].mean())

    @property
    def busy(self):
        """Packets a slot that the busy receiver gets, over the second half of the run; it can take 1."""
        return float(self.arrivals[len(self.arrivals) // 2:, :-1].sum(axis=1).mean())


def incast(control, *, slots=4000, senders=3, room=64, delay=2, lanes=1, headroom=None, ecn=False, mark=8):
    """Hosts on switch A send to hosts on switch B: `senders` of them to the same one, a bystander to one of its own.

    Every port carries a packet a slot, the trunk from A to B senders + 1, so that only the busy receiver is short. Every
    cable takes `delay` slots. A keeps `room` packets for each host, B `room` for the trunk, shared evenly by its `lanes`
    (InfiniBand's virtual lanes, Ethernet's priorities): with two, the bystander has one of its own. With `ecn` B marks
    the packets that find more than `mark` waiting for the busy receiver, which tells their sender; each sender then
    adapts its own rate as DCQCN does: rate·(1 - a/2), with a a running average of "was there a mark", and steps back up
    without one (Zhu et al., SIGCOMM 2015; constants scaled to short runs).

    Backed up on one lane the trunk serves all senders equally and moves what the busy receiver takes, so the bystander
    is left with 1 / senders. Returns an `Incast`. Errors: ValueError as in `one_link`, or for other counts below 1.

    >>> round(incast("credits").bystander, 2), round(incast("credits", lanes=2).bystander, 2)
    (0.33, 1.0)
    """
    n, lanes = _whole("senders", senders) + 1, _whole("lanes", 2 if control == "none" else lanes)
    if lanes > 2:
        raise ValueError(f"lanes={lanes}: 1 or 2 are allowed")
    inputs = [_Hop(control, room, delay) for _ in range(n)]
    trunks = [_Hop(control, room // lanes, delay, n, headroom) for _ in range(lanes)]
    lane = [0] * (n - 1) + [lanes - 1]
    at_a, at_b = [deque() for _ in range(n)], (deque(), deque())
    pace = [_Pace(who * _Pace.WINDOW // n) for who in range(n)]
    notices = deque()                                                 # (slot, sender): a mark on its way back
    sent, delivered, dropped, stopped = (np.zeros(n, dtype=int) for _ in range(4))
    arrivals, rates, queue = np.zeros((slots, n)), np.zeros((slots, n)), np.zeros(slots, dtype=int)
    marks, turn = 0, [0] * lanes
    for slot in range(_whole("slots", slots)):
        for hop in (*inputs, *trunks):
            got, lost = hop.arrive(slot)
            for who, _ in lost:
                dropped[who] += 1
            for who, marked in got:
                if hop in trunks:
                    idle = who == n - 1
                    marked = ecn and not idle and len(at_b[0]) > mark
                    marks += marked
                    at_b[idle].append((who, marked))
                else:
                    at_a[who].append((who, marked))
        for waiting in at_b:                                          # each receiver takes one
            if waiting:
                who, marked = waiting.popleft()
                trunks[lane[who]].release(slot)
                delivered[who] += 1
                arrivals[slot, who] = 1
                if marked:
                    notices.append((slot + 2 * delay, who))
        for hop in (*inputs, *trunks):
            hop.hear(slot)
        for number, trunk in enumerate(trunks):                       # each lane serves its hosts in turn
            members = [who for who in range(n) if lane[who] == number]
            for _ in members:
                ready = [who for who in members if at_a[who]]
                if not ready or not trunk.open:
                    break
                who = next((who for who in ready if who >= turn[number]), ready[0])
                trunk.send(slot, at_a[who].popleft())
                inputs[who].release(slot)
                turn[number] = who + 1
        while notices and notices[0][0] <= slot:
            pace[notices.popleft()[1]].told = True
        for who, hop in enumerate(inputs):
            wants = pace[who].step(slot) if ecn else True
            if wants and hop.open:
                hop.send(slot, (who, False))
                pace[who].spend()
                sent[who] += 1
            stopped[who] += wants and not hop.open
            rates[slot, who] = pace[who].rate
        queue[slot] = len(at_b[0])
    waiting = np.zeros(n, dtype=int)
    for packets in (*at_a, *at_b, *([packet for _, packet in hop.cable] for hop in (*inputs, *trunks))):
        for who, _ in packets:
            waiting[who] += 1
    return Incast(sent, delivered, dropped, waiting, stopped, queue, int(marks), arrivals, rates)


class _Hop:
    """One cable into one buffer, and what its sender knows: credits left, or whether it was told to stop."""

    def __init__(self, control, room, delay, rate=1, headroom=None):
        if control not in CONTROLS:
            raise ValueError(f"control={control!r}: one of {', '.join(CONTROLS)} is allowed")
        self.control, self.room, self.delay = control, _whole("room", room), _whole("delay", delay)
        headroom = headroom_packets(delay, rate) if headroom is None else headroom
        if control == "pause" and not 0 <= headroom < room:
            raise ValueError(f"headroom={headroom}: 0 to {room - 1} are allowed, below room={room}")
        self.limit = room - headroom                                  # say stop from here on
        self.cable, self.back = deque(), deque()                      # (slot it arrives, packet or message)
        self.held, self.credits, self.stopped, self.said_stop = 0, room, False, False

    @property
    def open(self):
        """Whether the sender may send a packet now."""
        return self.credits > 0 if self.control == "credits" else not self.stopped

    def send(self, slot, packet):
        self.credits -= 1
        self.cable.append((slot + self.delay, packet))

    def arrive(self, slot):
        """Packets that came through the cable and found room, and those that found none."""
        got, lost = [], []
        while self.cable and self.cable[0][0] <= slot:
            (got if self.held + len(got) < self.room else lost).append(self.cable.popleft()[1])
        self.held += len(got)
        if self.control == "pause" and self.held >= self.limit and not self.said_stop:
            self.said_stop = True
            self.back.append((slot + self.delay, "stop"))
        return got, lost

    def release(self, slot):
        """A packet has left the buffer."""
        self.held -= 1
        if self.control == "credits":
            self.back.append((slot + self.delay, "credit"))
        elif self.said_stop and self.held < self.limit:
            self.said_stop = False
            self.back.append((slot + self.delay, "go"))

    def hear(self, slot):
        """The sender gets what the receiver said `delay` slots ago."""
        while self.back and self.back[0][0] <= slot:
            word = self.back.popleft()[1]
            self.credits += word == "credit"
            self.stopped = word == "stop" or self.stopped and word != "go"


class _Pace:
    """A sender's own rate under congestion marks: cut at most once a window, stepped back up in windows without a mark."""

    WINDOW, GAIN, STEP = 32, 1 / 16, 1 / 128

    def __init__(self, first):
        self.first = first                                            # windows of different hosts do not end together
        self.rate, self.target, self.average, self.tokens, self.told = 1.0, 1.0, 1.0, 0.0, False

    def step(self, slot):
        """Adapt at the end of a window; whether this slot's packet is due."""
        if slot and slot % self.WINDOW == self.first:
            self.average += self.GAIN * (self.told - self.average)
            if self.told:
                self.target, self.rate = self.rate, self.rate * (1 - self.average / 2)
            else:
                self.target = min(1.0, self.target + self.STEP)
                self.rate = (self.rate + self.target) / 2
            self.told = False
        self.tokens = min(self.tokens, 1.0) + self.rate              # at most a packet saved up
        return self.tokens >= 1 - 1e-9

    def spend(self):
        self.tokens -= 1


def _whole(name, value):
    if value != int(value) or value < 1:
        raise ValueError(f"{name}={value}: whole numbers from 1 are allowed")
    return int(value)
