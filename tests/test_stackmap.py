"""The map of the software stack as HTML that needs no script."""

import re
from html.parser import HTMLParser

from clusterlab import stack
from clusterlab.widgets.stackmap import stack_map


class Reader(HTMLParser):
    """The words of each `<details>`, its summary apart, and whether tags close."""

    def __init__(self):
        super().__init__()
        self.open, self.folds, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        if tag == "details":
            self.folds.append({"summary": "", "rest": ""})
        if tag == "a":
            self.links.append(dict(attributes)["href"])
        assert not [name for name, _ in attributes if name.startswith("on")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.folds:
            self.folds[-1]["summary" if "summary" in self.open else "rest"] += data


def test_the_map_is_plain_html_with_a_fold_a_layer():
    read = Reader()
    read.feed(stack_map()._repr_html_())
    assert read.open == [] and len(read.folds) == len(stack.layers())
    for layer, fold in zip(stack.layers(), read.folds, strict=True):
        assert layer.name in fold["summary"] and layer.question in fold["summary"]
        assert all(ask in fold["rest"] for ask in layer.ask)
        for tool in stack.tools(layer.key):
            assert tool.name in fold["summary"]
            assert tool.solves in fold["rest"] and tool.limits in fold["rest"] and tool.date in fold["rest"]
    assert sorted(read.links) == sorted(re.findall(r"https://[^\s,]+", " ".join(t.source for t in stack.tools())))


def test_the_map_as_text_names_all():
    text = repr(stack_map())
    assert len(text.splitlines()) == len(stack.layers()) and all(tool.name in text for tool in stack.tools())
