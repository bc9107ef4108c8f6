"""Numbers the reader works out: forecast("06/ring-time", answer=0.48), and the numeric questions of `quiz`.

A forecast is committed before the run. In the page, committing opens what is sealed below it (outputs of cells tagged
``hide-output``, and any ``{dropdown}`` with ``:class-container: sealed``), up to the next forecast, claim or
second-level heading; without script the reader opens it by hand. (An admonition of class ``dropdown`` seals nothing:
it is folded by script only.) The question's data is described in `quiz`.
"""

from .base import Widget
from .questions import build


class Number(Widget):
    """A question answered by a number with a unit."""

    module = "forecast"

    def fallback(self):
        return self._forecast() if self.data["kind"] == "forecast" else self._numeric()

    def _forecast(self):
        data = self.data
        return (f"<p><strong>Forecast.</strong> {data['prompt']}</p>\n<p>Write your number down (in {data['unit']}) "
                "before you open what is hidden below.</p>\n"
                f"<details><summary>Our number</summary><p>{data['reveal']} {data['why']}</p>"
                f"{_mistakes(data)}</details>")

    def _numeric(self):
        parts = []
        for i, one in enumerate(self.data["sets"]):
            parts.append(f"<p><strong>{'With other numbers' if i else 'Question'}.</strong> {one['prompt']}</p>\n"
                         f"<details><summary>The answer</summary><p><strong>{one['answer']}.</strong> {one['why']}</p>"
                         f"{_mistakes(one)}</details>")
        return "\n".join(parts)


def _mistakes(number):
    return "".join(f"<p><em>If you had {mistake['shown']}:</em> {mistake['why']}</p>"
                   for mistake in number["mistakes"] if mistake["own"])


def forecast(key, answer):
    """The forecast `key`, "lesson/name", of a number known before the run, in SI units.

    `answer` is kept to six digits, so that the stored output is the same on every machine.
    """
    return Number(data=build(key, "forecast", answer=answer))
