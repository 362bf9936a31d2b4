"""What is run: the ``@recipe`` decorator, ``mark_step``, and targets such as ``path/file.py:function``. Imports no
torch.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from .errors import UntestableError, UsageError
from .tolerance import Tolerance

PROFILES: Final = ("strict", "portable", "observe")
LEVELS: Final = ("auto", "contract", "op", "full")

MAX_RANKS: Final = 64
"""So many processes on one machine that a run may be made of."""

_F = TypeVar("_F", bound=Callable[..., Any])
_ATTRIBUTE: Final = "__opguard_recipe__"


@dataclass(frozen=True, slots=True)
class RecipeOptions:
    """The arguments of ``@recipe``."""

    steps: int
    seed: int = 0
    profile: str = "strict"
    level: str = "auto"
    timeout: float = 600.0
    tolerance: Mapping[str, Tolerance] = field(default_factory=dict)
    unstable: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 1

    def as_arguments(self) -> dict[str, Any]:
        """What ``@recipe`` takes to give the same options."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def recipe(
    function: None = None,
    *,
    steps: int,
    seed: int = 0,
    profile: str = "strict",
    level: str = "auto",
    timeout: float = 600.0,
    tolerance: Mapping[str, Tolerance] | None = None,
    unstable: Mapping[str, str] | None = None,
    ranks: int = 1,
) -> Callable[[_F], _F]:
    """Declare a generator function as a recipe: a short pinned training run in which one yield is one step.

    Args:
        function: Must be left out; the decorator is always called.
        steps: How many steps (yields) the recipe makes; fewer make it untestable, it is stopped after this many.
        seed: The seed of all generators under ``strict`` and ``portable``.
        profile: ``strict``, ``portable`` or ``observe`` (docs: determinism).
        level: ``full`` (every operator and what it read), ``op`` (what it read is taken from what was written),
            ``contract`` (step boundaries only) or ``auto`` (``full`` or ``op``, by how much a step reads).
        timeout: Seconds after which a run is ended.
        tolerance: By pattern of contract names (``*`` stands for anything): how far their values may be from the
            reference's, as ``{"loss": ulp(2), "model.*": rtol(1e-6)}``. The first pattern that fits a name counts.
        unstable: By pattern of contract names or operators, the reason why they do not repeat themselves: they, and
            what follows from such operators alone, are not judged.
        ranks: In how many processes it runs, started as torchrun would (docs: ranks).

    Raises:
        UsageError: An argument is out of range, or the decorator was used without arguments.

    """
    if function is not None:
        raise UsageError("recipe-arguments", "@recipe needs its arguments: write @recipe(steps=4).")
    _require(
        isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1,
        f"steps must be a whole number from 1, not {steps!r}",
    )
    _require(isinstance(seed, int) and 0 <= seed < 2**63, f"seed must be a whole number from 0, not {seed!r}")
    _require(profile in PROFILES, f"profile must be one of {', '.join(PROFILES)}, not {profile!r}")
    _require(level in LEVELS, f"level must be one of {', '.join(LEVELS)}, not {level!r}")
    _require(
        isinstance(timeout, (int, float)) and timeout > 0,
        f"timeout must be a number of seconds above 0, not {timeout!r}",
    )
    _require(
        all(isinstance(p, str) and isinstance(limit, Tolerance) for p, limit in (tolerance or {}).items()),
        f"tolerance must map patterns of contract names to ulp(…), rtol(…) or atol(…), not {tolerance!r}",
    )
    _require(
        isinstance(unstable or {}, Mapping)
        and all(isinstance(text, str) and text.strip() for item in (unstable or {}).items() for text in item),
        f'unstable must map patterns to reasons, as {{"aux_loss": "summed by threads"}}, not {unstable!r}',
    )
    _require(
        isinstance(ranks, int) and not isinstance(ranks, bool) and 1 <= ranks <= MAX_RANKS,
        f"ranks must be a whole number from 1 to {MAX_RANKS}, not {ranks!r}",
    )
    options = RecipeOptions(
        steps, seed, profile, level, float(timeout), dict(tolerance or {}), dict(unstable or {}), ranks
    )

    def decorate(decorated: _F) -> _F:
        setattr(decorated, _ATTRIBUTE, options)
        return decorated

    return decorate


def options_of(function: object) -> RecipeOptions | None:
    """The options of a decorated function; None for any other object."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, RecipeOptions) else None


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise UsageError("recipe-arguments", f"@recipe: {sentence}.")


_mark_listeners: list[Callable[[int], None]] = []


def mark_step(step: int) -> None:
    """Say that training step ``step`` begins now. Outside of a captured run this does nothing."""
    for listener in _mark_listeners:
        listener(step)


@contextmanager
def marking(listener: Callable[[int], None]) -> Iterator[None]:
    """Have ``mark_step`` call ``listener`` while the block runs."""
    _mark_listeners.append(listener)
    try:
        yield
    finally:
        _mark_listeners.remove(listener)


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed TARGET: ``package.module:function``, ``path/file.py:function`` or ``path/file.py``."""

    text: str
    file: Path | None  # absolute; None for the module form
    module: str | None
    function: str | None  # None: a script, run as ``__main__``

    def search_path(self, cwd: str, root: str | None) -> list[str]:
        """What stands at the front of ``sys.path``: the file's folder or the working directory, then the tree."""
        first = str(self.file.parent) if self.file is not None else cwd
        base = Path(root or cwd)
        return list(dict.fromkeys([first, str(base), *([str(base / "src")] if (base / "src").is_dir() else [])]))


def parse_target(text: str, cwd: str) -> Target:
    """Parse a TARGET against a working directory. Raises ``UsageError`` if it is malformed or its file does not
    exist.
    """
    path, colon, function = text.rpartition(":")
    if not colon or (function.endswith(".py") and Path(cwd, text).is_file()):  # a folder's name may have a colon
        path, colon, function = text, "", ""
    if colon and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", function):
        raise UsageError("bad-target", f"{text!r} is no target: after the colon stands the name of a function.")
    if path.endswith(".py"):
        file = Path(cwd, path)
        if not file.is_file():
            raise UsageError(
                "target-not-found", f"There is no file {path!r} in {cwd!r}: name a file, or package.module:function."
            )
        return Target(text, file.resolve(), None, function or None)
    if not colon or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", path):
        raise UsageError(
            "bad-target",
            f"{text!r} is no target: write path/file.py, path/file.py:function or package.module:function.",
        )
    return Target(text, None, path, function)


def load_function(target: Target) -> Callable[..., Any]:
    """Import the target's module and return its function. Errors raised by the user's module pass through."""
    assert target.function is not None
    module = _import_file(target.file) if target.file is not None else _import_module(target)
    found: Any = module
    for name in target.function.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            import difflib

            near = difflib.get_close_matches(name, [each for each in dir(found) if not each.startswith("_")], 1)
            hint = f"did you mean {near[0]!r}?" if near else "name a function that is there."
            where = target.text.rpartition(":")[0]
            raise UsageError("target-not-found", f"There is no {target.function!r} in {where!r}; {hint}") from None
    if not callable(found):
        raise UsageError("bad-target", f"{target.text!r} is not a function.")
    return found  # type: ignore[no-any-return]


def _import_module(target: Target) -> ModuleType:
    assert target.module is not None
    try:
        return importlib.import_module(target.module)
    except ModuleNotFoundError as error:
        if error.name is not None and (target.module == error.name or target.module.startswith(f"{error.name}.")):
            raise UsageError(
                "target-not-found",
                f"There is no module {target.module!r} on the path: run from the project's root, or name a file.",
            ) from None
        raise


def _import_file(file: Path) -> ModuleType:
    name = file.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    try:  # through the import system, so that an importer of ours (or a package's own name) is honoured
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is not None and found.origin is not None and Path(found.origin).resolve() == file:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True)
class Decoration:
    """What a file says about a function without being run."""

    is_recipe: bool
    profile: str | None = None
    literals: Mapping[str, Any] = field(default_factory=dict)


def peek(target: Target, search_path: Sequence[str]) -> Decoration:
    """Whether the target is decorated with ``@recipe``, and with which literal arguments, read from its source alone.

    The profile decides which server runs the target, so it must be known before the target is imported.
    """
    file = target.file or _module_file(target.module or "", search_path)
    if file is None or target.function is None:
        return Decoration(False)
    return discover(file).get(target.function, Decoration(False))


def discover(file: Path) -> dict[str, Decoration]:
    """The functions of a file that are decorated with ``@recipe``, in order, read from its source alone.

    A file that cannot be parsed has none: running it will say what is wrong.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    found = {}
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and _name(decorator.func).rpartition(".")[2] == "recipe":
                literals = {
                    k.arg: k.value.value for k in decorator.keywords if k.arg and isinstance(k.value, ast.Constant)
                }
                profile = literals.get("profile")
                found[node.name] = Decoration(True, profile if isinstance(profile, str) else None, literals)
    return found


def own_ranks(literals: Mapping[str, Any]) -> int:
    """The ranks that a decoration says (see ``Decoration.literals``); 1 where it says none that can be."""
    ranks = literals.get("ranks")
    return ranks if type(ranks) is int and 1 <= ranks <= MAX_RANKS else 1


def peek_profile(text: str, cwd: str, root: str | None = None) -> str:
    """The profile a target runs under when none is asked for: a recipe's own, ``observe`` for everything else."""
    target = parse_target(text, cwd)
    found = peek(target, target.search_path(cwd, root))
    if not found.is_recipe:
        return "observe"
    return found.profile if found.profile in PROFILES else "strict"


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _module_file(module: str, search_path: Sequence[str]) -> Path | None:
    parts = module.split(".")
    for base in [*search_path, *sys.path]:
        for file in (Path(base, *parts).with_suffix(".py"), Path(base, *parts, "__init__.py")):
            if file.is_file():
                return file
    return None


def check_callable(function: Callable[..., Any], text: str) -> bool:
    """Whether ``function`` takes a ``mark`` parameter.

    Raises ``UntestableError`` if it needs other arguments or is a coroutine.
    """
    for candidate in (function, getattr(function, "__call__", None)):  # noqa: B004 - its code, not whether it has one
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise UntestableError(
                "target-async", f"{text} is a coroutine: wrap it in a function that calls asyncio.run()."
            )
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name != "mark"
    ]
    if needed:
        raise UntestableError(
            "target-arguments",
            f"{text} needs the arguments {', '.join(needed)}: a target takes none (or `mark`); wrap it in a function.",
        )
    return "mark" in parameters
