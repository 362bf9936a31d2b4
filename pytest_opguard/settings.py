"""The plugin's options: command line, else ini file, checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from opguard_ci.config import MISSING
from opguard_ci.recipe import LEVELS, PROFILES


@dataclass(frozen=True, slots=True)
class Option:
    """One option: ``--opguard-<name>`` and the ini key ``opguard_<name>``."""

    name: str
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    is_flag: bool = False

    @property
    def key(self) -> str:
        """The ini key, and the name of the attribute in pytest's options."""
        return f"opguard_{self.name.replace('-', '_')}"

    @property
    def flag(self) -> str:
        """The command line's spelling."""
        return f"--opguard-{self.name}"


OPTIONS: Final = (
    Option("reference", "compare with this commit, run again on this machine", "COMMIT"),
    Option("golden", "the folder of the goldens, in place of the project's", "DIR"),
    Option("bless", "record the goldens of all selected recipes, and say why they are right", "REASON"),
    Option("level", "what is recorded: full, op, contract or auto", None, LEVELS),
    Option("profile", "pins for every recipe, in place of its own", None, PROFILES),
    Option("report", "write each test's verdict (JSON and text) to this folder", "DIR"),
    Option("missing", "what happens to a test without a reference", None, MISSING),
    Option("strict", "let equivalent fail", is_flag=True),
    Option("in-process", "run recipes in pytest's own process, for debuggers; --pdb implies it", is_flag=True),
)

_MARKABLE: Final[dict[str, tuple[object, ...]]] = {
    "level": LEVELS,
    "profile": PROFILES,
    "missing": MISSING,
    "strict": (True, False),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The options in force."""

    reference: str | None = None
    golden: Path | None = None
    bless: str | None = None
    level: str | None = None
    profile: str | None = None
    report: Path | None = None
    missing: str | None = None
    strict: bool = False
    in_process: bool = False


def add_options(parser: pytest.Parser) -> None:
    """Declare every option on the command line and for the ini file."""
    group = parser.getgroup("opguard", "opguard: determinism of training")
    for option in OPTIONS:
        if option.is_flag:
            group.addoption(option.flag, action="store_true", default=None, dest=option.key, help=option.help)
            parser.addini(option.key, option.help, type="bool", default=False)
        else:
            group.addoption(
                option.flag, dest=option.key, default=None, choices=option.choices, metavar=option.metavar,
                help=option.help,
            )  # fmt: skip
            parser.addini(option.key, option.help, type="string", default="")


def read_settings(config: pytest.Config) -> Settings:
    """The options of this session. Raises ``pytest.UsageError`` for an ini value that is none of the choices."""
    values: dict[str, Any] = {}
    for option in OPTIONS:
        given = config.getoption(option.key)
        name = option.name.replace("-", "_")
        if given is not None:
            values[name] = given
        elif found := config.getini(option.key):
            if option.choices is not None and found not in option.choices:
                wanted = ", ".join(option.choices)
                raise pytest.UsageError(f"opguard: {option.key} in the ini file must be one of {wanted}, not {found!r}")
            values[name] = found
    for name in ("report", "golden"):
        if name in values:
            values[name] = _folder(config, str(values[name]), f"opguard_{name}")
    if config.getoption("usepdb", False):
        values["in_process"] = True
    return Settings(**values)


def settings_of(item: pytest.Item, settings: Settings) -> Settings:
    """The options for one test: those of the session under what its marker says.

    Raises ``pytest.UsageError`` for a marker that says something else than level, profile, missing or strict.
    """
    for mark in reversed(list(item.iter_markers("opguard"))):
        unknown = [*map(repr, mark.args), *(name for name in mark.kwargs if name not in _MARKABLE)]
        wrong = [name for name, value in mark.kwargs.items() if name in _MARKABLE and value not in _MARKABLE[name]]
        if unknown or wrong:
            raise pytest.UsageError(
                f"opguard: the marker of {item.nodeid} takes {', '.join(_MARKABLE)} with the options' values, "
                f"not {', '.join([*unknown, *wrong])}"
            )
        settings = replace(settings, **mark.kwargs)
    return settings


def _folder(config: pytest.Config, text: str, key: str) -> Path:
    """A folder as it was meant: below the caller's for the command line, below the root for the ini file."""
    base = config.rootpath if config.getoption(key) is None else config.invocation_params.dir
    return base / Path(text).expanduser()
