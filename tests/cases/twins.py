"""Twins of a case program: the same computation written differently, as source text."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

ENTRY_POINTS = frozenset({"good", "bad", "run", "REQUIRES"})
FILLER = ("# A remark that was not here before.", "#", "# It moves every line below it.")
FRAMEWORK_BASES = frozenset({"Module", "Dataset", "object"})


def commented(source: str) -> str:
    """The program with comment lines above every top-level statement."""
    tree = ast.parse(source)
    above = {min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) for node in tree.body}
    lines: list[str] = []
    for number, line in enumerate(source.splitlines(), start=1):
        if number in above:
            lines.extend(FILLER)
        lines.append(line)
    return "\n".join(lines) + "\n"


def renamed(source: str) -> str:
    """The program with other names for local variables, parameters and attributes of its own classes.

    Names that anything outside the file could look up stay: module-level names, keyword arguments, parameters of the
    entry points, and attributes that torch defines too.
    """
    tree = ast.parse(source)
    renamer = _Renamer(_numbered(local_names(tree)), _numbered(own_attributes(tree)))
    return ast.unparse(ast.fix_missing_locations(renamer.visit(tree))) + "\n"


def local_names(tree: ast.Module) -> list[str]:
    """Names that are bound in functions and nowhere else, in order of appearance."""
    bound: dict[str, None] = {}
    fixed = set(dir(builtins)) | {"self", "cls", "mark"} | set(_bound_outside_functions(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg:
            fixed.add(node.arg)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            fixed.update(node.names)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            fixed.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.arg):
            bound[node.arg] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = None
        elif isinstance(node, ast.FunctionDef):
            if node.name in ENTRY_POINTS:
                fixed.update(argument.arg for argument in node.args.args)
            bound.update((inner.name, None) for inner in node.body if isinstance(inner, ast.FunctionDef))
    return [name for name in bound if name not in fixed]


def own_attributes(tree: ast.Module) -> list[str]:
    """Attributes that classes of this file set on themselves and that can be told from the framework's."""
    own: dict[str, None] = {}
    elsewhere: set[str] = set()
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    methods = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    file_classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not _on_self(node):
            elsewhere.add(node.attr)
        if isinstance(node, ast.ClassDef):
            bases = {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "?") for base in node.bases}
            if bases <= FRAMEWORK_BASES | file_classes:
                stores = (n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
                own.update((store.attr, None) for store in stores if _on_self(store))
    reserved, shared = _framework_names()
    return [
        name for name in own if name not in reserved | strings | methods and not (name in shared and name in elsewhere)
    ]


def _bound_outside_functions(tree: ast.Module) -> Iterator[str]:
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))


def _on_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _framework_names() -> tuple[set[str], set[str]]:
    """What a module must not redefine, and what objects other than the file's own also answer to."""
    import torch

    samples = (torch, torch.Tensor, torch.nn.functional, torch.nn.Linear(1, 1), torch.nn.Embedding(1, 1), "", [], {})
    return set(dir(torch.nn.Module())), {name for sample in samples for name in dir(sample)} | {"eps", "scale"}


def _numbered(names: list[str]) -> dict[str, str]:
    """New names that sort the other way round."""
    return {name: f"n{len(names) - position:02d}_{name}" for position, name in enumerate(names)}


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, str], attributes: dict[str, str]) -> None:
        self.names, self.attributes = names, attributes

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self.names.get(node.arg, node.arg)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self.names.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        if node.name:
            node.name = self.names.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = self.attributes.get(node.attr, node.attr)
        return self.generic_visit(node)
