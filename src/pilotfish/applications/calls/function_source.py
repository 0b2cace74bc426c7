"""Finds the source of a function, so that a slot with a different version of Python can compile it.

The function must be self-contained: all names that it uses are built-in, or can be imported from the standard library or from installed
packages. The source that is sent begins with imports of these names. Annotations are not evaluated in the slot.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import keyword
import symtable
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pilotfish.applications.calls.own_modules import is_own_module
from pilotfish.errors import BadInput

LAMBDA = "<lambda>"
LAMBDA_NAME = "_lambda_of_pilotfish"
USE_PICKLE = 'use form="pickle"'
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class FunctionSource(NamedTuple):
    """The source of a function. ``name``: the name that the source gives to the function."""

    name: str
    text: bytes


def source_of(function: Callable[..., Any]) -> FunctionSource:
    """Returns the source of a self-contained function. If the standard library or an installed package has the callable, the source is only
    its import. For any other callable, raises BadInput with the reason."""
    shown = getattr(function, "__qualname__", None) or type(function).__name__
    if (line := _import_of(getattr(function, "__name__", ""), function)) is not None and not isinstance(function, types.MethodType):
        return FunctionSource(function.__name__, line.encode())
    inner, wrappers = _unwrap(function)
    if not isinstance(inner, types.FunctionType):
        kind = "a method with its object" if isinstance(inner, types.MethodType) else f"of type {type(inner).__name__}"
        raise BadInput(
            f"{shown}: it is {kind}, and only a function can be sent as source", f"write a function that calls it, or {USE_PICKLE}"
        )
    closure = [name for name in inner.__code__.co_freevars if name != inner.__name__]
    if closure:
        fix = f"pass {_these(closure)} as {'an argument' if len(closure) == 1 else 'arguments'}"
        raise BadInput(f"{shown}: it uses {', '.join(closure)} of the function around it, which its source does not have", fix)
    lines, tree = _file_of(inner, shown)
    definition = _definition_of(inner, tree, shown)
    decorators = _decorators(definition)
    if wrappers > len(decorators):
        raise BadInput(f"{shown}: a decorator was called outside its definition", "write the decorator above the def, with @")
    # A recursive lambda calls itself by the name of a global variable, so the source gives the lambda this name.
    of_lambda = (name for name, value in inner.__globals__.items() if value is inner and name.isidentifier())
    name = next(of_lambda, LAMBDA_NAME) if isinstance(definition, ast.Lambda) else definition.name
    text = _text(definition, lines, name)
    imports = _imports(text, name, _Names(inner.__globals__, tree), shown)
    return FunctionSource(name, "\n".join(["from __future__ import annotations", *imports, text, ""]).encode())


def _unwrap(function: Any) -> tuple[Any, int]:
    """Removes wrappers that ``functools.wraps`` or ``lru_cache`` made. Returns the function inside, and the number of wrappers."""
    wrappers = 0
    while hasattr(function, "__wrapped__"):
        function, wrappers = function.__wrapped__, wrappers + 1
    return function, wrappers


def _file_of(function: types.FunctionType, shown: str) -> tuple[list[str], ast.Module]:
    """Returns the lines and the syntax tree of the file that defines a function. A cell of a notebook counts as a file."""
    try:
        lines, _ = inspect.findsource(function)
        return lines, ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError) as error:
        raise BadInput(f"{shown}: its source cannot be found ({error})", f"write it to a file, or {USE_PICKLE}") from error


def _definition_of(function: types.FunctionType, tree: ast.Module, shown: str) -> _Definition:
    found = [node for node in ast.walk(tree) if isinstance(node, _Definition) and _defines(node, function)]
    if not found:
        text = f"{shown}: its definition is not found in its file, which may have changed after it was imported"
        raise BadInput(text, f"start the program again, or {USE_PICKLE}")
    if len(found) > 1:
        raise BadInput(f"{shown}: there are {len(found)} like it in one line", "write them in separate lines")
    return found[0]


def _defines(node: _Definition, function: types.FunctionType) -> bool:
    code = function.__code__
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    count = code.co_argcount + code.co_kwonlyargcount
    if first != code.co_firstlineno or [argument.arg for argument in arguments] != [*code.co_varnames[:count]]:
        return False
    if not isinstance(node, ast.Lambda):
        return code.co_name == node.name
    # One line can contain several lambdas. They are told apart by position: the instruction that computes the result of a lambda has the
    # position of the result's expression in the source.
    places = {(one.lineno, one.end_lineno, one.col_offset, one.end_col_offset) for one in _results(node.body)}
    return code.co_name == LAMBDA and not places.isdisjoint(code.co_positions())


def _results(body: ast.expr) -> Iterator[ast.expr]:
    """Yields the parts of an expression that can give its value. For ``a if c else b``, these are a and b. Any other expression is one
    part."""
    if isinstance(body, ast.IfExp):
        yield from (*_results(body.body), *_results(body.orelse))
    else:
        yield body


def _decorators(node: _Definition) -> list[ast.expr]:
    if isinstance(node, ast.Lambda):
        return []
    # The source does not contain the class of the function. Outside of a class, a static method is a plain function.
    return [one for one in node.decorator_list if not (isinstance(one, ast.Name) and one.id == "staticmethod")]


class _Names(NamedTuple):
    """The global names of the module that defines a function. ``tree``: the syntax tree of the module's file, or of the notebook cell."""

    values: dict[str, Any]
    tree: ast.Module

    def import_of(self, name: str) -> str | None:
        """Returns the line that imports a name. Returns None if a node without the user's modules cannot import the name."""
        value = self.values[name]
        statements = (node for node in self.tree.body if isinstance(node, ast.ImportFrom) and not node.level)
        return _import_of(name, value) or next((line for node in statements for line in _imports_in(node, name, value)), None)


def _imports_in(node: ast.ImportFrom, name: str, value: Any) -> Iterator[str]:
    """Yields a line that imports ``name`` if ``node`` is the statement that imported this name. Yields nothing if the statement imports
    from one of the user's own modules. ``value``: the current value of the name. The statement is needed for values such as ``math.pi``,
    which do not know their module."""
    module = sys.modules.get(str(node.module))
    for alias in node.names:
        if (alias.asname or alias.name) == name and module is not None and getattr(module, alias.name, _imports_in) is value:
            if not is_own_module(module):
                yield f"from {node.module} import {alias.name} as {name}"


def _text(node: _Definition, lines: list[str], name: str) -> str:
    """Returns the text of a definition. A lambda gets the name ``name``. A nested function keeps its indentation, because other indentation
    would change its multi-line strings."""
    if isinstance(node, ast.Lambda):
        return f"{name} = ({ast.get_source_segment(''.join(lines), node)})"
    decorators = _decorators(node)
    if len(decorators) == len(node.decorator_list):
        first = min([node.lineno, *(one.lineno for one in decorators)])
        above = []
    else:
        first = node.lineno
        above = [f"{' ' * node.col_offset}@{ast.unparse(one)}\n" for one in decorators]
    text = "".join([*above, *lines[first - 1 : node.end_lineno]])
    return f"if True:\n{text}" if node.col_offset else text


def _imports(text: str, name: str, names: _Names, shown: str) -> list[str]:
    """Returns the imports that the source needs. Raises BadInput if the source needs a name that cannot be imported."""
    found, missing = [], []
    for used, defines in _free_names(text):
        is_known = used in names.values
        if used == name or (not is_known and (hasattr(builtins, used) or not defines)):
            continue  # the function itself, a built-in name, or an undefined name: the call itself raises NameError
        line = names.import_of(used) if is_known else None
        if line is None:
            missing.append(used)
        else:
            found.append(line)
    if missing:
        fix = (
            f"pass {_these(missing)} as {'an argument' if len(missing) == 1 else 'arguments'}, or define {_these(missing)} in the function"
        )
        raise BadInput(f"{shown}: it uses {', '.join(missing)} of its module, which its source does not have", fix)
    return found


def _free_names(text: str) -> Iterator[tuple[str, bool]]:
    """Yields the names that a definition uses but does not define, each with a flag. The flag is True if Python needs the name to execute
    the definition itself, for example for a decorator. It is False if only a call of the function needs the name."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    top = symtable.symtable(ast.unparse(tree), "<source>", "exec")
    names: dict[str, bool] = {}
    for table in _tables(top):
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or table is top) and not (table is top and symbol.is_assigned()):
                names[symbol.get_name()] = names.get(symbol.get_name(), False) or table is top
    yield from names.items()


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from _tables(inner)


def _import_of(name: str, value: Any) -> str | None:
    """Returns the line that imports a value under a name, or None if a node without the user's modules cannot import the value."""
    if not name.isidentifier() or keyword.iskeyword(name):
        return None
    if isinstance(value, types.ModuleType):
        return None if is_own_module(value) else f"import {value.__name__} as {name}"
    module, original = getattr(value, "__module__", None), getattr(value, "__name__", None) or name
    if not isinstance(module, str) or not isinstance(original, str) or module in ("__main__", "__mp_main__"):
        return None
    found = sys.modules.get(module)
    for one in dict.fromkeys((original, name)):
        if found is not None and getattr(found, one, None) is value and one.isidentifier() and not is_own_module(found):
            return f"from {module} import {one} as {name}"
    return None


def _these(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"
