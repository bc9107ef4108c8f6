"""``{recorded}``: which machines have been measured, and what never was on real hardware, from lessons/measurements/."""

import html
import importlib.util
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

MODULE = Path(__file__).parent.parent / "lib" / "clusterlab" / "recorded.py"
NAMES = {"cpu": "CPU", "cuda": "CUDA (NVIDIA)", "rocm": "ROCm (AMD)", "xpu": "XPU (Intel)", "mps": "MPS (Apple)"}


def load():
    """The module alone: a book is built without the packages that its notebooks need."""
    spec = importlib.util.spec_from_file_location("clusterlab_recorded", MODULE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listing(where):
    """The two lists as HTML, for the records in a folder."""
    recorded = load()
    machines, rows = [], []
    for one in recorded.measurements(where).values():
        count = f"{one['cores']} cores" if one["kind"] == "cpu" else f"{one['devices']} device{'s' * (one['devices'] > 1)}"
        machines.append(f"<li>{html.escape(one['device'])}, {count}, {one['date']}, torch {html.escape(one['torch'])}</li>")
    for kind, left in recorded.never_run(where).items():
        probes = "; ".join(f"{probe}: {', '.join(name.removeprefix(probe + ' ') for name in names)}" for probe, names in left.items())
        rows.append(f'<tr><th scope="row">{NAMES[kind]}</th><td>{html.escape(probes)}</td></tr>')
    table = ('<p>Never run:</p>\n<table><thead><tr><th scope="col">device</th><th scope="col">probes</th></tr></thead>'
             f"<tbody>{''.join(rows)}</tbody></table>")
    return (f"<p>Measured:</p>\n<ul>{''.join(machines) or '<li>nothing yet</li>'}</ul>\n"
            + (table if rows else "<p>Nothing is left: every probe has run on every kind of device.</p>"))


class Recorded(SphinxDirective):
    has_content = True

    def run(self):
        where = Path(self.env.srcdir) / "lessons" / "measurements"
        for path in where.glob("*.json"):
            self.env.note_dependency(str(path))
        return [nodes.raw("", listing(where), format="html")]
