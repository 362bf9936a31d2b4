"""Hooks of the pytest plugin ``opguard``; what they do lies in the modules beside this one. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from opguard_ci.config import Config, load_config
from opguard_ci.errors import UsageError
from pytest_opguard import collecting, fixture, header, outcome, xdist
from pytest_opguard.guarding import GUARD, Guard
from pytest_opguard.items import RecipeItem
from pytest_opguard.results import Results
from pytest_opguard.settings import add_options, read_settings, settings_of

if TYPE_CHECKING:
    from pytest_opguard.fixture import Opguard

_PROJECT: Final = pytest.StashKey[tuple[Path, Config]]()
"""Root and settings of the project, for deciding which files are collected."""
_CHILD: Final = "opguard-child"
_MARKER: Final = (
    "opguard(level, profile, missing, strict): a test whose training numerics are compared with a reference; "
    "every recipe and every test with the fixture opguard has it"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Pin what is read when torch is imported, before a conftest does so, if recipes are to run in this process."""
    options = early_config.known_args_namespace
    if options.opguard_in_process or early_config.getini("opguard_in_process"):
        from opguard_ci.determinism.profile import environment_variables

        profile = options.opguard_profile or early_config.getini("opguard_profile") or "strict"
        os.environ.update(environment_variables(profile))


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings; nothing is started."""
    config.addinivalue_line("markers", _MARKER)
    root = _root_of(config.rootpath)
    with _usage_errors():
        config.stash[_PROJECT] = (root, load_config(root))
    if config.pluginmanager.has_plugin(_CHILD):
        return
    guard = config.stash[GUARD] = Guard(config, read_settings(config))
    if xdist.is_controller(config):
        config.pluginmanager.register(Results(guard.settings.report), "opguard-results")
    number = xdist.worker_number(config)
    if number is not None:
        xdist.claim_gpu(number)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let go of trees and scratch folders."""
    if GUARD in config.stash:
        config.stash[GUARD].close()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse what cannot hold before xdist starts its workers, whose controller collects nothing."""
    if GUARD in session.config.stash and _distributes(session.config):
        with _usage_errors():
            session.config.stash[GUARD].validate()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is known, where no later line will say more."""
    if GUARD not in config.stash or not _distributes(config):
        return None
    return header.early_line(config.stash[GUARD])


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> str | None:
    """Say what the recipes will be compared with."""
    recipes = [item for item in items if isinstance(item, RecipeItem)]
    if not recipes or GUARD not in config.stash or config.getoption("collectonly"):
        return None
    return header.line(config.stash[GUARD], recipes)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, list[Any], list[Any]]:
    """Collect the files that ``[tool.opguard] recipes`` lists too, whatever they are called."""
    found = yield
    root, config = parent.config.stash[_PROJECT]
    is_module = any(isinstance(each, pytest.Module) for each in found)
    if not is_module and collecting.is_listed(file_path, root, config.recipes):
        found.append(parent.ihook.pytest_pycollect_makemodule(module_path=file_path, parent=parent))
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[RecipeItem] | None:
    """Make a recipe a test."""
    return collecting.collect_recipe(collector, name, obj)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the fixture, so that ``-m opguard`` finds it."""
    for item in items:
        if isinstance(item, RecipeItem) or "opguard" not in getattr(item, "fixturenames", ()):
            continue
        if item.get_closest_marker("opguard") is None:
            item.add_marker("opguard")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse, once and before any test, what cannot hold for any of them: an unknown commit, a blessing in CI."""
    guarded = [item for item in session.items if item.get_closest_marker("opguard") is not None]
    if not guarded or GUARD not in session.config.stash or session.config.getoption("collectonly"):
        return
    guard = session.config.stash[GUARD]
    for item in guarded:
        settings_of(item, guard.settings)
    if xdist.is_controller(session.config):
        with _usage_errors():
            guard.validate()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Judge a test with the fixture when its body has passed."""
    result = yield
    fixture.judge(pyfuncitem)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give reports their verdicts."""
    report = yield
    outcome.attach(item, report, call.excinfo.value if call.excinfo is not None else None)
    return report


@pytest.fixture(name="opguard")
def opguard_fixture(request: pytest.FixtureRequest) -> Iterator[Opguard]:
    """Steps of a test whose numerics are compared with the reference's: ``for step in opguard.steps(4): …``."""
    child = request.config.pluginmanager.get_plugin(_CHILD)
    yield from child.provide() if child is not None else fixture.provide(request.node)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn errors of the user into pytest's own: one line, exit code 4."""
    try:
        yield
    except UsageError as error:
        raise pytest.UsageError(f"opguard: {error.message} [{error.slug}]") from None


def _distributes(config: pytest.Config) -> bool:
    """Whether this is the controller of an xdist session."""
    return xdist.is_controller(config) and config.getoption("dist", "no") != "no"


def _root_of(folder: Path) -> Path:
    """The top of the checkout that pytest's root lies in, found without git; else pytest's root."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)
