"""The figure of lesson 5: what it says without script, and that its data are the library's."""

import json
import re

from clusterlab import slowest
from clusterlab.widgets.slowest import STATES, explorer


def test_the_figure_reads_without_script_and_holds_what_the_library_says():
    widget = explorer("demo/explorer", seed=1)
    html = widget._repr_mimebundle_()[0]["text/html"]
    assert html.count("<table>") == html.count("</table>") == len(STATES) and html.count("<details") == html.count("</details>")
    for words in slowest.JOBS.values():
        assert words in html
    data = json.loads(re.search(r'<script type="application/json">(.*)</script>', html, re.DOTALL)[1])
    found = slowest.slowest(slowest.fabrics()["4:1 tree"], "DP", policy="ecmp", shuffled=True, seed=1)
    assert data["loads"]["4:1 tree"]["DP"][3] == [round(load, 2) for load in found.by_kind.values()]
    assert data["kinds"]["4:1 tree"] == list(found.by_kind)
    assert all(len(one) == len(data["kinds"][fabric]) for fabric, jobs in data["loads"].items() for states in jobs.values() for one in states)
    row = re.search(r"<tr><th scope=\"row\">4:1 tree</th>(.*?)</tr>", html)[1]
    assert re.findall(r"<td>([\d.]+)</td>", row) == ["0.0", "2.0", "4.0", "2.1", "3.9"]
    assert len(html) < 12_000
