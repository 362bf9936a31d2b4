"""Imports a commit's modules from its tree alone, compiles the bytes itself and proves that they are the commit's.

An editable install of the project leads every import that a tree cannot serve into the user's checkout, whatever
stands in sys.path, and a stale ``.pyc`` of the same size and second runs old code. So a finder at the front of
``sys.meta_path`` owns every top-level name that the tree has: for these nothing else is asked. What other finders
would load from the user's checkout does not exist for the run. No ``.pyc`` is read or written.

Not covered: code that reads and compiles files itself (``exec(open(...))``, ``runpy.run_path``), and Python
processes that the run starts by a command line. The files they open in the checkout are seen by `watch` only in
processes that installed it.
"""

# Why: these are the strings of sys.path and __file__; pathlib would change their spelling.
# ruff: noqa: PTH112, PTH113, PTH118, PTH123
from __future__ import annotations

import importlib
import importlib.machinery as machinery
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import _bootstrap_external
from types import CodeType, ModuleType
from typing import Any, Literal

from opguard_ci.errors import UntestableError
from opguard_ci.worker.layout import blob_id
from opguard_ci.worker.plan import ImportPlan

TOOL = frozenset({"opguard_ci", "pytest_opguard"})
"""Never taken from a tree: the code that runs and judges must be the same for all commits."""
STANDARD = (machinery.BuiltinImporter, machinery.FrozenImporter, machinery.PathFinder)
Origin = Literal["commit", "pinned", "built", "generated"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module that came from the tree.

    ``path`` is below the tree; ``blob`` names the very bytes that ran. ``origin``: ``commit`` and ``pinned`` are
    proven against the blob id they should have; ``built`` was made by the build, ``generated`` by the run itself.
    """

    module: str
    path: str
    blob: str
    origin: Origin


class TreeFinder:
    """The finder for one tree; see `install`."""

    def __init__(self, plan: ImportPlan) -> None:
        self.plan = plan
        self._borders = plan.borders()
        self._real = os.path.realpath(plan.tree)
        self._loaded: dict[str, Loaded] = {}
        self._names: set[str] = set()
        self._namespaces: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> machinery.ModuleSpec | None:
        """The spec of a module of the tree, or of one from elsewhere if the tree has no part in that name."""
        parent, _, _ = name.rpartition(".")
        top = name.partition(".")[0]
        if top in TOOL or name in sys.builtin_module_names:
            return None
        if not parent:
            return self._find_top(name, target)
        if top not in self._names or path is None:
            return None
        return self._find_inside(name, parent, path, target)

    def prove(self, module: str, path: str, data: bytes) -> None:
        """Record that ``module`` runs these bytes of the file at ``path``.

        Raises UntestableError ``proof-failed`` if they are not what the commit holds there; it is no ImportError, so
        that no ``except ImportError`` of the project turns it into another code path.
        """
        place = os.path.relpath(os.path.realpath(path), self._real)
        if place.startswith(".."):
            raise UntestableError(
                "proof-failed", f"Module {module} ({path}) lies outside of the commit's tree, behind a symbolic link."
            )
        found = blob_id(data, self.plan.algorithm)
        expected = self.plan.files.get(place)
        if expected is not None and expected != found:
            raise UntestableError(
                "proof-failed",
                f"Module {module} would run other bytes than the commit's {place} (blob {found[:12]}, not "
                f"{expected[:12]}): something changed the file during the run.",
            )
        origin: Origin = "generated"
        if expected is not None:
            origin = "pinned" if place in self.plan.pinned else "commit"
        elif place in self.plan.built:
            origin = "built"
        self._loaded[module] = Loaded(module, place, found, origin)

    def prove_file(self, path: str, module: str = "__main__") -> bytes:
        """The proven bytes of a file that the caller is going to compile itself, such as a script."""
        with open(path, "rb") as file:
            data = file.read()
        self.prove(module, path, data)
        return data

    def report(self) -> list[Loaded]:
        """Every module that came from the tree, in the order of loading."""
        return list(self._loaded.values())

    def foreign(self) -> list[tuple[str, str]]:
        """Modules that are the project's by name or by place and did not come from the tree: (name, where from).

        Looks at ``__spec__`` in the modules' own dictionaries: asking modules for attributes would wake lazy ones.
        """
        found, owned = [], self._owned()
        for name, module in list(sys.modules.items()):
            spec = _own(module, "__spec__")
            loader = getattr(spec, "loader", None)
            if name.partition(".")[0] in TOOL or isinstance(loader, (_SourceLoader, _ExtensionLoader)):
                continue
            origin = getattr(spec, "origin", None) or _own(module, "__file__")
            origin = origin if isinstance(origin, str) else ""
            is_owned = name.partition(".")[0] in owned
            if self._borders.is_users(origin) or (is_owned and origin and not self._is_in_tree(origin)):
                found.append((name, origin))
        return found

    def _owned(self) -> set[str]:
        """Top-level names of the tree that belong to no installed distribution's regular package."""
        regular = set()
        for path in (*self.plan.files, *self.plan.built):
            for root in self.plan.roots:
                rest = path[len(root) + 1 :] if root and path.startswith(root + "/") else path if not root else ""
                first, _, inner = rest.partition("/")
                if first and (inner == "__init__.py" or (not inner and first.endswith(".py"))):
                    regular.add(first.removesuffix(".py"))
        return (regular | self._names) - TOOL

    def _find_top(self, name: str, target: ModuleType | None) -> machinery.ModuleSpec | None:
        spec, portions = self._in_folders(name, self.plan.folders())
        if spec is None:
            other = self._elsewhere(name, None, target)
            if other is not None and other.loader is not None:
                return other  # as ever in Python: a regular module anywhere wins over folders without __init__.py
            # Editable namespaces leave a placeholder among the portions, which is no folder.
            portions += [p for p in _locations(other) if os.path.isdir(p) and not self._borders.is_users(p)]
            if not portions:
                if other is not None:
                    raise _absent(name)
                return None
            if portions == _locations(other):
                return other
            spec = self._namespace(name, portions)
        self._names.add(name)
        return spec

    def _find_inside(
        self, name: str, parent: str, path: Sequence[str], target: ModuleType | None
    ) -> machinery.ModuleSpec | None:
        spec, portions = self._in_folders(name, [place for place in path if self._is_in_tree(place)])
        if spec is not None:
            return spec
        if parent in self._namespaces:
            beyond = [place for place in path if not self._is_in_tree(place) and not self._borders.is_users(place)]
            other = machinery.PathFinder.find_spec(name, beyond, target) if beyond else None
            if other is not None and other.loader is not None:
                return other
            portions += _locations(other)
        if portions:
            return self._namespace(name, portions)
        other = self._elsewhere(name, path, target)
        if other is not None and (other.origin is not None or other.loader is None):
            raise _absent(name)
        return other  # at most a module without a file, made by a finder of the project's own

    def _elsewhere(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> machinery.ModuleSpec | None:
        """What the other finders have; one that leads into the user's checkout is taken out of this process."""
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is None:
                continue
            places = [spec.origin] if spec.origin else _locations(spec)
            leads_astray = any(self._borders.is_users(place) for place in places)
            if path is not None:  # the tree has the parent, so a file from anywhere else is not the commit's
                leads_astray = bool(places)
            if not leads_astray:
                return spec
            if finder in STANDARD:
                if spec.loader is None or path is not None:
                    return spec
                raise _absent(name)
            sys.meta_path.remove(finder)
        return None

    def _in_folders(self, name: str, folders: Iterable[str]) -> tuple[machinery.ModuleSpec | None, list[str]]:
        """A package or module of that name in the first folder that has one; else folders that may be portions."""
        tail = name.rpartition(".")[2]
        portions = []
        for folder in folders:
            base = os.path.join(folder, tail)
            if os.path.isdir(base):
                spec = self._from_file(name, os.path.join(base, "__init__"), [base])
                if spec is not None:
                    return spec, []
            spec = self._from_file(name, base, None)
            if spec is not None:
                return spec, []
            if os.path.isdir(base):
                portions.append(base)
        return None, portions

    def _from_file(self, name: str, stem: str, inside: list[str] | None) -> machinery.ModuleSpec | None:
        for suffix in machinery.EXTENSION_SUFFIXES:
            if os.path.isfile(stem + suffix):
                loader: Any = _ExtensionLoader(name, stem + suffix)
                loader.finder = self
                return importlib.util.spec_from_file_location(
                    name, stem + suffix, loader=loader, submodule_search_locations=inside
                )
        if os.path.isfile(stem + ".py"):
            loader = _SourceLoader(name, stem + ".py")
            loader.finder = self
            return importlib.util.spec_from_file_location(
                name, stem + ".py", loader=loader, submodule_search_locations=inside
            )
        return None

    def _namespace(self, name: str, portions: list[str]) -> machinery.ModuleSpec:
        """A namespace package, with the path object that importlib.resources and others know it by."""
        self._namespaces.add(name)
        spec = machinery.ModuleSpec(name, None, is_package=True)
        portions = list(dict.fromkeys(portions))
        kind: Any = getattr(_bootstrap_external, "_NamespacePath", None) or vars(_bootstrap_external)["NamespacePath"]
        spec.submodule_search_locations = kind(name, portions, self.find_spec)
        return spec

    def _is_in_tree(self, path: str) -> bool:
        return path == self.plan.tree or path.startswith(self.plan.tree + os.sep)


class _SourceLoader(machinery.SourceFileLoader):
    """Compiles the file's bytes after proving them; resources, source text and reload work as for any file."""

    finder: TreeFinder

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        data = self.get_data(path)
        self.finder.prove(fullname, path, data)
        code: CodeType = self.source_to_code(data, path)
        return code

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing: this is how bytecode would reach the disk."""


class _ExtensionLoader(machinery.ExtensionFileLoader):
    """Loads a compiled module only if the commit or its build made it."""

    finder: TreeFinder

    def create_module(self, spec: machinery.ModuleSpec) -> ModuleType:
        self.finder.prove_file(self.path, self.name)
        if self.finder._loaded[self.name].origin == "generated":
            del self.finder._loaded[self.name]
            raise UntestableError(
                "proof-failed",
                f"The compiled module {self.name} ({self.path}) is neither in the commit nor made by its build; "
                "name the command that makes it as `build` in [tool.opguard].",
            )
        return super().create_module(spec)


def install(plan: ImportPlan) -> TreeFinder:
    """Put a finder for ``plan`` in front, and lead sys.path entries from the user's checkout to the tree."""
    finder = TreeFinder(plan)
    sys.path[:] = plan.relocate(sys.path)
    importlib.invalidate_caches()
    sys.meta_path.insert(0, finder)
    return finder


def uninstall(finder: TreeFinder) -> None:
    """Take the finder out again; modules that it loaded stay."""
    sys.meta_path.remove(finder)


def _absent(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"No module named {name!r} in the commit (the working tree or an installed copy has one)", name=name
    )


def _locations(spec: machinery.ModuleSpec | None) -> list[str]:
    return list((spec.submodule_search_locations if spec is not None else None) or ())


def _own(module: object, name: str) -> Any:
    """An attribute from a module's own dictionary, past any ``__getattr__`` and ``__getattribute__``."""
    try:
        return object.__getattribute__(module, "__dict__").get(name)
    except AttributeError:
        return None
