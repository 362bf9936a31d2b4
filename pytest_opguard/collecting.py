"""What is collected: every ``@recipe`` function of a collected file is a test, and files that list recipes are too."""

from __future__ import annotations

import inspect
from fnmatch import fnmatchcase
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import pytest

from opguard_ci.recipe import options_of
from pytest_opguard.items import RecipeItem

_NO_FIXTURES: Final = (
    "a recipe runs in a process of its own, where fixtures and monkeypatch do not reach. Give it its arguments by "
    "@pytest.mark.parametrize, or build what it needs inside it"
)


def is_listed(file: Path, root: Path, recipes: tuple[str, ...]) -> bool:
    """Whether ``[tool.opguard] recipes`` names this file: as a target, as a glob, or as a module."""
    try:
        place = file.relative_to(root).as_posix()
    except ValueError:
        return False
    for entry in recipes:
        path, colon, _ = entry.rpartition(":")
        if not colon:
            path = entry
        if path.endswith(".py"):
            if fnmatchcase(place, path) or fnmatchcase(place, path.replace("**/", "")):
                return True
        elif colon and place.removeprefix("src/") == f"{path.replace('.', '/')}.py":
            return True
    return False


def collect_recipe(collector: pytest.Module | pytest.Class, name: str, found: object) -> list[RecipeItem] | None:
    """The tests of a recipe, one for each set of parameters; None if ``found`` is no recipe.

    Raises ``CollectError`` for a recipe that needs arguments which nothing can give it.
    """
    if not isinstance(found, FunctionType) or options_of(found) is None:
        return None
    if isinstance(collector, pytest.Class):
        raise collector.CollectError(f"{name} is a method: a recipe is a function of a module, without `self`.")
    items = []
    for function in collector._genfunctions(name, found):
        callspec: Any = getattr(function, "callspec", None)
        given = set(callspec.params) if callspec is not None else set()
        _check_arguments(collector, function, given)
        item: RecipeItem = RecipeItem.from_parent(
            collector,
            name=function.name,
            callspec=callspec,
            fixtureinfo=function._fixtureinfo,
            keywords={callspec.id: True} if callspec is not None else None,
            originalname=function.originalname,
        )
        if item.get_closest_marker("opguard") is None:
            item.add_marker("opguard")
        items.append(item)
    return items


def _check_arguments(collector: pytest.Module, function: pytest.Function, given: set[str]) -> None:
    name = function.originalname
    fixtures = [str(argument) for mark in function.own_markers if mark.name == "usefixtures" for argument in mark.args]
    if fixtures:
        raise collector.CollectError(f"{name} uses the fixtures {', '.join(fixtures)}, but {_NO_FIXTURES}.")
    indirect = any(mark.kwargs.get("indirect") for mark in function.own_markers if mark.name == "parametrize")
    if indirect:
        raise collector.CollectError(f"{name} is parametrized through fixtures (indirect=), but {_NO_FIXTURES}.")
    missing = [
        parameter.name
        for parameter in inspect.signature(function.obj).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name not in given
    ]
    if missing:
        raise collector.CollectError(f"{name} needs the arguments {', '.join(missing)}, but {_NO_FIXTURES}.")
