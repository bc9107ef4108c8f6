"""Questions: quiz("06/ring-bytes"), hunch("06/faster"), verdict("06/c14"). This page is the format of their data.

The questions of lesson NN stand in ``clusterlab/data/questions/NN.toml``; ``quiz("06/ring-bytes")`` shows the table
``[ring-bytes]`` of ``06.toml``. First the lesson's objectives, by letter (`see` is where a miss is sent)::

    [objectives]
    a = {says = "count the bytes each rank sends", see = "[Moving bytes](#moving-bytes)"}

A question has `kind`, `prompt` and, if it is scored, `objective = "a"` or (a question "from before") its own `see`,
which also overrides the objective's. Each kind adds:

**single**, **multiple**: two to six `choices`, each with `text`, `why` (the thought behind it: shown when it is
chosen) and `right = true` for what is right (one in `single`, one or more but not all in `multiple`). A choice may
have ``value = "expression"``, its text then says ``{value}`` or ``{format_bytes(value)}``. With ``key =
"expression"`` a `single` question's right choice is the one whose value equals the key, computed whenever it is
shown, and no choice says `right`::

    [ring-steps]
    kind = "single"
    objective = "a"
    given = {ranks = 8}
    prompt = "How many steps does a ring all-reduce of {ranks} ranks take?"
    key = "collectives.steps('ring', ranks)"
    choices = [
      {value = "2 * (ranks - 1)", text = "{value}", why = "`n − 1` steps to add up, `n − 1` to pass the sums on."},
      {value = "ranks - 1", text = "{value}", why = "That is reduce-scatter alone; the sums must still go round."},
    ]

**numeric**: `given` is a list of one or more sets of values ("other numbers" goes round them), `key` an expression,
`unit` the unit a bare number is read in, `tolerance` relative (default 0.02; 0 for counts), `why` the way to the
answer, `mistakes` the usual wrong values with the thought behind each::

    [ring-bytes]
    kind = "numeric"
    objective = "a"
    given = [{size = "140*GB", ranks = 8}, {size = "16*MiB", ranks = 4}]
    prompt = "{ranks} ranks all-reduce {format_bytes(size)} by ring. How many bytes does each rank send?"
    key = "collectives.bytes_sent('ring', size, ranks)"
    unit = "GB"
    why = "`2(n − 1)/n` of the array: {format_bytes(key)}."
    mistakes = [{value = "key / 2", why = "Reduce-scatter alone. All-gather sends as much again."}]

**order**: `choices` (`text`, `why` it stands there) in the right order; they are shown in another.

**hunch**: not scored. `choices` with `text` and maybe `why`; `answer` is what came of it. Both are shown at the end of
the lesson by `standing`, never before.

**verdict**: not scored; a claim, the reader's verdict before ours. `prompt` is the claim, `verdict` one of "holds",
"holds under a stated convention", "does not hold"; `why` argues it. The reader's verdict opens ours and the sealed
text that follows.

**forecast** (see `forecast`): `prompt`, `unit`, `mistakes` as in *numeric*, `reveal`, the sentence that tells the
answer ("The paced ring took {answer}."), `why`, and `title`, its name in the list at the end. The answer itself is an
argument of ``forecast("06/ring-time", answer=…)``. `tolerance` (default 0.1) is what counts as close.

All texts are plain, with ```code```, ``*emphasis*``, ``**strong**`` and ``[links](#anchor)``; no TeX. In each of them
``{expression}`` or ``{expression:.3g}`` is computed by `clusterlab.expressions.fill` from the given values (numbers,
or expressions: a plain word needs its own quotes, ``"'ring'"``), `value` (choice, mistake), `key` (after the prompt)
and `answer` (forecast). ``{{`` is a brace.
`questions.check("06")` recomputes a whole file and lists what is wrong.
"""

from html import escape

from .base import Widget
from .forecast import Number
from .questions import VERDICTS, build

LABELS = {"single": "Question", "multiple": "Question: choose all that apply", "order": "Question: put in order",
          "hunch": "Hunch: choose before you read on", "verdict": "Check the claim"}


class Choice(Widget):
    """A question answered by choosing or ordering."""

    module = "quiz"

    def fallback(self):
        data = self.data
        head = f"<p><strong>{LABELS[data['kind']]}.</strong> {data['prompt']}</p>"
        return f"{head}\n{getattr(self, '_' + data['kind'])(data['choices'])}"

    def _single(self, choices):
        return "\n".join(f"<details><summary>{c['text']}</summary><p><strong>{'Right' if c['right'] else 'Not so'}."
                         f"</strong> {c['why']}</p></details>" for c in choices)

    _multiple = _single

    def _order(self, choices):
        shown = "".join(f"<li>{choices[i]['text']}</li>" for i in self.data["shown"])
        right = "".join(f"<li>{c['text']}: {c['why']}</li>" for c in choices)
        return f"<ul>{shown}</ul>\n<details><summary>The right order</summary><ol>{right}</ol></details>"

    def _hunch(self, choices):
        items = "".join(f"<li>{c['text']}</li>" for c in choices)
        return f"<ul>{items}</ul>\n<p>Keep your choice in mind: the end of the lesson returns to it.</p>"

    def _verdict(self, choices):
        ours = next(c["text"] for c in choices if c["right"])
        return (f"<p>Decide first: {escape('; '.join(VERDICTS))}?</p>\n<details><summary>Our verdict</summary>"
                f"<p><strong>It {ours}.</strong> {self.data['why']}</p></details>")


def quiz(key):
    """The question `key`, "lesson/name", as a widget that answers every choice with the thought behind it."""
    data = build(key, "single", "multiple", "numeric", "order")
    return (Number if data["kind"] == "numeric" else Choice)(data=data)


def hunch(key):
    """A choice made before any theory: kept, not scored, shown again by `standing`."""
    return Choice(data=build(key, "hunch"))


def verdict(key):
    """A claim that the reader judges first; then our verdict opens, and what is sealed below it."""
    return Choice(data=build(key, "verdict"))
