"""Expressions in the book's data: a number in a TOML file is computed by the library, never typed in.

The registry of numbers and the questions hold texts such as ``collectives.bytes_sent('ring', 140*GB, 8)``.
An expression is one Python expression of calls, arithmetic and literals over the modules of this folder, the public
names in them (bare where only one module has the name) and the few functions of `FUNCTIONS`. The data is the book's
own: the rules keep expressions readable and mistakes visible; they are no sandbox for hostile text.
"""

import ast
import difflib
import functools
import importlib
import math
import pkgutil
import string
import types

from . import units

FUNCTIONS = {
    "abs": abs, "min": min, "max": max, "round": round, "sum": sum, "len": len, "int": int, "float": float,
    "ceil": math.ceil, "floor": math.floor, "log2": math.log2, "log": math.log, "exp": math.exp, "sqrt": math.sqrt,
}
_ALLOWED = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Attribute, ast.Call, ast.keyword, ast.Subscript, ast.Tuple,
    ast.List, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Compare, ast.cmpop, ast.IfExp,
)


def evaluate(text, /, **names):
    """The value of one expression; `names` are the given values, which hide the library's of the same name.

    Raises ValueError for what is no such expression or cannot be computed, LookupError for an unknown name.

    >>> evaluate("2 * (ranks - 1) / ranks * 140*GB", ranks=8)
    245000000000.0
    >>> evaluate("units.format_seconds(0.5444)")
    '544 ms'
    """
    code = _parse(text)
    found = {name: _resolve(name, names, text) for name in names_in(text)}
    try:
        return eval(compile(code, "<expression>", "eval"), {"__builtins__": {}}, found)
    except Exception as error:
        raise ValueError(f"expression {text!r} cannot be computed: {type(error).__name__}: {error}") from error


def names_in(text):
    """The names an expression uses, in order; empty for a literal, which proves nothing.

    >>> names_in("steps * GB / 2"), names_in("1.09")
    (['steps', 'GB'], [])
    """
    found = sorted((node.lineno, node.col_offset, node.id) for node in ast.walk(_parse(text))
                   if isinstance(node, ast.Name))
    return list(dict.fromkeys(name for *_, name in found))


def fill(template, /, **names):
    """A text with every ``{expression}`` or ``{expression:format}`` replaced by its value; ``{{`` is a brace.

    A number without a format is written whole, or with four significant digits.

    >>> fill("{ranks} ranks send {format_bytes(2 * size * (ranks - 1) / ranks)}, {1/3:.1%}", ranks=8, size=140e9)
    '8 ranks send 245 GB, 33.3%'
    """
    parts = []
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"template {template!r}: {error}; write a brace of the text itself twice") from error
    for literal, expression, form, conversion in fields:
        parts.append(literal)
        if expression is None:
            continue
        if conversion:
            raise ValueError(f"template {template!r}: '!{conversion}' is not supported")
        value = evaluate(expression, **names)
        parts.append(format(value, form) if form else _plain(value))
    return "".join(parts)


def _plain(value):
    """A whole number in full, another with four significant digits."""
    if isinstance(value, str):
        return value
    value = float(value)
    if value.is_integer() and abs(value) < 1e15:
        return f"{value:.0f}"
    text = f"{value:.4g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e15 else text


def _parse(text):
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise ValueError(f"expression {text!r} is no Python expression: {error.msg}") from error
    strange = [type(node).__name__ for node in ast.walk(tree) if not isinstance(node, _ALLOWED)]
    private = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    if strange or private:
        raise ValueError(f"expression {text!r}: {', '.join(strange + private)} not allowed; "
                         "use calls, arithmetic, comparisons, literals and public names")
    return tree


@functools.cache
def _modules():
    package = importlib.import_module(__package__)
    return tuple(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg and m.name != "expressions")


def _resolve(name, given, text):
    if name in given:
        return given[name]
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name in _modules():
        return importlib.import_module(f"{__package__}.{name}")
    if name in _public(units):
        return getattr(units, name)
    vocabulary = _vocabulary()
    if name in vocabulary:
        owners = vocabulary[name]
        if len(owners) > 1:
            raise LookupError(f"expression {text!r}: {name!r} is ambiguous; write one of "
                              f"{', '.join(f'{module}.{name}' for module in owners)}")
        return next(iter(owners.values()))
    near = difflib.get_close_matches(name, [*given, *FUNCTIONS, *_modules(), *vocabulary], 3, 0.5)
    hint = f"near names: {', '.join(near)}" if near else f"given: {', '.join(given) or 'nothing'}"
    raise LookupError(f"expression {text!r}: unknown name {name!r}; {hint}")


def _public(module):
    """The names a module itself offers: no private ones, no modules and no functions or classes from elsewhere."""
    return {name: value for name, value in vars(module).items()
            if not name.startswith("_") and not isinstance(value, types.ModuleType)
            and (not callable(value) or getattr(value, "__module__", None) == module.__name__)}


@functools.cache
def _vocabulary():
    """Every public name of the modules: {name: {module: object}}, the same object counted once."""
    found = {}
    for module in _modules():
        for name, value in _public(importlib.import_module(f"{__package__}.{module}")).items():
            owners = found.setdefault(name, {})
            if not any(value is other or (isinstance(value, int | float | str) and value == other)
                       for other in owners.values()):
                owners[module] = value
    return found
