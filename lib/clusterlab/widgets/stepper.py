"""Chunks on the move: stepper("06/ring-4", "Ring, four ranks", 4, schedule("ring", 4)) steps through a collective."""

from html import escape

from .base import Widget, rich

MOST_RANKS = 16


class Stepper(Widget):
    """Which rank sends which chunk to whom, and whose contributions each rank's chunk holds, step by step."""

    module = "stepper"

    def fallback(self):
        data = self.data
        rows = "".join(f"<tr><td>{i}</td><td>{frame['say']}</td><td>{_moves(frame)}</td>"
                       f"<td>{self._finished(frame)}</td></tr>"
                       for i, frame in enumerate(data["frames"]))
        return (f"<p><strong>{data['title']}.</strong> {data['ranks']} ranks, {data['chunks']} "
                f"{'chunk' if data['chunks'] == 1 else 'chunks'}, {len(data['frames']) - 1} steps.</p>\n"
                "<details><summary>All steps as a table</summary>\n<table><thead><tr><th>Step</th><th>What happens</th>"
                f"<th>Moves</th><th>Complete sums</th></tr></thead><tbody>{rows}</tbody></table></details>")

    def _finished(self, frame):
        full = 2 ** self.data["ranks"] - 1
        done = [(rank, [c for c, mask in enumerate(row) if mask == full]) for rank, row in enumerate(frame["held"])]
        return "; ".join(f"rank {rank}: {_chunks(chunks)}" for rank, chunks in done if chunks) or "none"


def stepper(key, title, ranks, steps):
    """A figure that steps through `steps`, each a list of moves (src, dst, chunks, op) or {"say", "moves", "state"}.

    `chunks` is one index or several, `op` is "add" or "copy"; moves of one step carry what was there before it. The
    state is simulated here: adding a contribution twice is a ValueError, and so is a given `state`
    (``[rank][chunk]`` -> contributing ranks) that the moves do not lead to.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise ValueError(f"ranks={ranks}; the figure shows 2 to {MOST_RANKS}")
    steps = [step if isinstance(step, dict) else {"moves": step} for step in steps]
    moves = [[_move(move, ranks, i + 1) for move in step["moves"]] for i, step in enumerate(steps)]
    chunks = 1 + max((chunk for step in moves for _, _, some, _ in step for chunk in some), default=0)
    held = [[1 << rank] * chunks for rank in range(ranks)]
    frames = [{"say": "Start: each rank holds its own array.", "moves": [], "held": held}]
    for i, (step, now) in enumerate(zip(steps, moves, strict=True)):
        held = _apply(now, held, i + 1)
        if "state" in step and [[sum(1 << r for r in set(cell)) for cell in row] for row in step["state"]] != held:
            raise ValueError(f"step {i + 1}: its moves do not lead to the given state")
        say = rich(step.get("say") or _say(now, ranks))
        frames.append({"say": say, "moves": [list(move) for move in now], "held": held})
    if len(frames) > 1 and all(mask == 2**ranks - 1 for row in held for mask in row):
        frames[-1]["say"] += " Now every rank holds the whole sum."
    return Stepper(data={"key": key, "title": rich(title), "ranks": ranks, "chunks": chunks, "frames": frames})


def _move(move, ranks, step):
    src, dst, chunks, op = (move[k] for k in ("src", "dst", "chunk", "op")) if isinstance(move, dict) else move
    chunks = [chunks] if isinstance(chunks, int) else list(chunks)
    if op not in ("add", "copy") or src == dst or not {src, dst} <= set(range(ranks)) or min(chunks, default=-1) < 0:
        raise ValueError(f"step {step}: move {move!r}; allowed are ranks 0 to {ranks - 1}, chunks from 0, add or copy")
    return src, dst, chunks, op


def _apply(moves, before, step):
    after = [list(row) for row in before]
    for src, dst, chunks, op in moves:
        for chunk in chunks:
            if op == "copy":
                after[dst][chunk] = before[src][chunk]
            elif after[dst][chunk] & before[src][chunk]:
                raise ValueError(f"step {step}: rank {dst} would add a contribution to chunk {chunk} twice")
            else:
                after[dst][chunk] |= before[src][chunk]
    return after


def _say(moves, ranks):
    """One sentence on a step; the moves themselves are listed beside it."""
    senders, receivers = ({move[i] for move in moves} for i in (0, 1))
    sizes = {len(move[2]) for move in moves}
    who = f"{_names('Rank', senders)} send{'s' if len(senders) == 1 else ''}"
    if len(senders) == ranks:
        who = "Every rank sends"
    what = "one chunk" if sizes == {1} else f"{sizes.pop()} chunks" if len(sizes) == 1 else "chunks"
    to = f" to {_names('rank', receivers)}" if len(receivers) == 1 else ""
    ops = {move[3] for move in moves}
    arrives = {"add": "what arrives is added", "copy": "what arrives replaces what was there"}
    return f"{who} {what}{to}; {' or '.join(arrives[op] for op in sorted(ops))}."


def _names(word, ranks):
    ranks = sorted(ranks)
    return f"{word} {ranks[0]}" if len(ranks) == 1 else f"{word}s {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _chunks(chunks):
    runs = ", ".join(str(chunk) for chunk in chunks)
    return f"{'chunk' if len(chunks) == 1 else 'chunks'} {runs}"


def _moves(frame):
    moves = [f"rank {src} → rank {dst}: {_chunks(chunks)}" for src, dst, chunks, _ in frame["moves"]]
    return escape("; ".join(moves)) or "none"
