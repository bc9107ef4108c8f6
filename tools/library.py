"""The library's pages, from its docstrings: read as text, so that building the book imports nothing of it."""

import ast
import html
import re
from pathlib import Path

LIB = Path(__file__).parent.parent / "lib" / "clusterlab"
ROOMS = {  # page: the folder of its modules
    "library_math": ".", "library_cluster": ".", "library_run": "run", "library_widgets": "widgets",
}
FIRST = {  # the modules a page shows first; what no page of the folder names follows on the folder's first page
    "library_math": "units hardware components parts hierarchy levels onchip transformer compute kernels plan memory fitting activations formats",
    "library_cluster": """collectives algorithms nccl nccllog communication wiring topo topology clos dragonfly torus
                          routing hashing sized slowest flowcontrol hostpath feeding pipeline schedules training layertime iteration workload degree
                          reliability extremes waterfall cost benchmarks quoted""",
    "library_run": """ranks links device timing allreduce racing parallel model data_parallel tensor_parallel
                      pipeline_parallel context_parallel expert_parallel scale checkpoint failures""",
    "library_widgets": "quiz forecast standing stepper questions",
}
TITLES = {
    "library_math": "Mathematics: parts, models, memory",
    "library_cluster": "Mathematics: communication, training, failures",
    "library_run": "Experiments", "library_widgets": "Widgets",
}


def files(page):
    """The modules of a page, in its order."""
    found = {path.stem: path for path in sorted((LIB / ROOMS[page]).glob("*.py")) if not path.stem.startswith("__")}
    own = [found[name] for name in FIRST[page].split() if name in found]
    pages = [other for other, folder in ROOMS.items() if folder == ROOMS[page]]
    named = {name for other in pages for name in FIRST[other].split()}
    return own + ([path for name, path in found.items() if name not in named] if page == pages[0] else [])


def page(name):
    """The Markdown of all modules of a page; of "library", the lists of all rooms."""
    if name == "library":
        return "\n\n".join(f"### [{TITLES[room]}]({room}.md)\n\n{overview(room)}" for room in ROOMS)
    return "\n\n".join(module(path) for path in files(name))


def overview(name):
    """The Markdown list of a page's modules, each with its first sentence."""
    return "\n".join(f"- [{path.stem}]({name}.md#{path.stem.replace('_', '-')}): {_prose(sentence(path))}"
                     for path in files(name))


def sentence(path):
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]


def module(path):
    """One module: its docstring, its constants, and every public name with signature and docstring."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    name = ".".join(("clusterlab", *path.relative_to(LIB).with_suffix("").parts))
    parts = [f"## {path.stem}", markdown(ast.get_docstring(tree) or "")]
    if constants := [line for node in tree.body for line in constant(node, source)]:
        parts.append(_verbatim("\n".join(constants)))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return "\n\n".join(parts + [entry(node, name, classes) for node in tree.body if public(node)])


def public(node):
    return (isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            and bool(ast.get_docstring(node)))


def constant(node, source):
    """A line for a module's UPPERCASE constants and units, cut after its first line."""
    if not isinstance(node, ast.Assign):
        return []
    names = [n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    if any(n.startswith("_") for n in names) or not (names[0].isupper() or isinstance(node.targets[0], ast.Tuple)):
        return []
    line, *more = ast.get_source_segment(source, node).split("\n")
    return [f"{line}  # …" if more and "#" not in line else line]


def entry(node, owner, classes, colons=8):
    """One function, class, method or property as Sphinx's Python domain shows it."""
    fence, members = ":" * colons, []
    if isinstance(node, ast.ClassDef):
        kind, signature = "class", f"{node.name}({', '.join(fields(node, classes))})"
        members = [entry(member, owner, classes, colons - 2) for member in node.body
                   if public(member) and isinstance(member, ast.FunctionDef)]
    elif "property" in (ast.unparse(d) for d in node.decorator_list):
        kind, signature = "property", node.name
    else:
        kind, signature = "method" if colons < 8 else "function", f"{node.name}({arguments(node)})"
    head = [f"{fence}{{py:{kind}}} {signature}", f":module: {owner}", ":no-contents-entry:", ""]
    first, _, rest = ast.get_docstring(node).partition("\n\n")
    more = ["", "<details><summary>More</summary>", "", markdown(rest), "", "</details>"] if rest else []
    return "\n".join([*head, markdown(first), *more, "", *members, fence])


def arguments(function):
    """A function's arguments without annotations and without self."""
    args = function.args
    for arg in ast.walk(args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    if args.args and args.args[0].arg in ("self", "cls"):
        args.args = args.args[1:]
    return ast.unparse(args)


def fields(node, classes):
    """What a class is made from: a dataclass's fields, those of its bases first, else the arguments of __init__."""
    inherited = [one for base in node.bases if ast.unparse(base) in classes
                 for one in fields(classes[ast.unparse(base)], classes)]
    if any("dataclass" in ast.unparse(d) for d in node.decorator_list):
        own = [f for f in node.body if isinstance(f, ast.AnnAssign) and not f.target.id.startswith("_")]
        return inherited + [f.target.id + (f"={ast.unparse(f.value)}" if f.value else "") for f in own]
    made = [arguments(f) for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
    return [text for text in made if text] or inherited


def markdown(docstring):
    """A docstring as Markdown: examples stand as they are, roles become code, signs of Markdown stay signs.

    Nothing is coloured and nothing has a button: that is an element a word, which makes so long a page slow.

    >>> print(markdown("Size in :mod:`units`, $5.\\n\\n>>> 1 + 1\\n2"))
    Size in `units`, \\$5.
    <BLANKLINE>
    <pre>&gt;&gt;&gt; 1 + 1
    2</pre>
    """
    blocks = []
    for block in re.split(r"\n\s*\n", docstring):
        if block.lstrip().startswith(">>>"):
            blocks.append(_verbatim(block))
        elif all(line.startswith("    ") for line in block.split("\n")):
            blocks.append(_verbatim("\n".join(line[4:] for line in block.split("\n"))))
        else:
            blocks.append(_prose(block))
    return "\n\n".join(blocks)


def _verbatim(text):
    return f"<pre>{html.escape(text, quote=False)}</pre>"


def _prose(text):
    text = re.sub(r":[a-z]+:(?=`)", "", re.sub(r"::(?=$)", ":", text))
    pieces = re.split(r"(`+[^`]+`+)", text)
    pieces[::2] = [re.sub(r"([$<_{|[]|\*(?=\*)|(?<=\*)\*|(?<=\w)\*(?=\w))", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)
