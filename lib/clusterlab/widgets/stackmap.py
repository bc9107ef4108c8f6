"""The map of the software stack as HTML: a line a layer, which opens to its tools. No script: `<details>` suffice."""

import html
import re

from .. import stack


class StackMap:
    """What :func:`stack_map` returns: HTML in a notebook and in the page, a list of layers as plain text."""

    def __repr__(self):
        return "\n".join(f"{layer.name}: {', '.join(tool.name for tool in stack.tools(layer.key))}"
                         for layer in stack.layers())

    def _repr_html_(self):
        return "\n".join(_layer(layer) for layer in stack.layers())


def stack_map():
    """The layers of :mod:`clusterlab.stack` from the cluster down to the device, each with its tools folded.

    >>> print(repr(stack_map()).splitlines()[0])
    allocate: Slurm, Kubernetes
    """
    return StackMap()


def _layer(layer):
    tools = stack.tools(layer.key)
    names = ", ".join(html.escape(tool.name) for tool in tools)
    asks = "; ".join(f"“{html.escape(ask)}”" for ask in layer.ask)
    return (f'<details class="catalogue"><summary><strong>{html.escape(layer.name)}</strong>: '
            f"{html.escape(layer.question)} <em>{names}</em></summary>\n<p>Come here when: {asks}.</p>\n<dl>\n"
            + "\n".join(_tool(tool) for tool in tools) + "\n</dl>\n</details>")


def _tool(tool):
    speaks = f" <em>Speaks to</em> {', '.join(map(html.escape, tool.speaks))}." if tool.speaks else ""
    source = re.sub(r"https://[^\s,]+", lambda m: f'<a href="{m[0]}">{m[0]}</a>', html.escape(tool.source))
    return (f"<dt>{html.escape(tool.name)}</dt><dd><em>Solves:</em> {html.escape(tool.solves)}. <em>Does not:</em> "
            f"{html.escape(tool.limits)}.{speaks} <em>Source:</em> {source} ({tool.date}).</dd>")
