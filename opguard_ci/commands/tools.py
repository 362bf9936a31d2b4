"""``opguard tools``: verbs as function schemas for coding agents, made from the command line's own parser."""

from __future__ import annotations

import argparse
import importlib
import json
import typing
from typing import Any, Final

from opguard_ci.commands import Result
from opguard_ci.report.layout import Line

NAME: Final = "tools"
HELP: Final = "print function schemas of compare, check, bisect and show, for coding agents"

VERBS: Final = ("compare", "check", "bisect", "show")
_NOT_FOR_AGENTS: Final = ("help", "pdb")
"""Options that end at a person."""
_TYPES: Final = {int: "integer", float: "number"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own options: none."""


def run(args: argparse.Namespace) -> Result:
    """Print the schemas; the text is the list of them, too."""
    tools = [tool(name) for name in VERBS]
    text = tuple(Line(line) for line in json.dumps(tools, indent=2).splitlines())
    return Result({"schema": 1, "verdict": "ok", "tools": tools}, text, 0)


def tool(name: str) -> dict[str, Any]:
    """One verb: ``name``, ``description``, ``parameters`` (a JSON schema), and how a call becomes a command line.

    ``command`` is how it begins; then come the ``options`` that were given (their flag, and the value unless it is
    ``true``; the values of a list behind each other), the ``positional`` ones, and ``target_arguments`` behind ``--``.
    """
    verb = importlib.import_module(f"opguard_ci.commands.{name}")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    verb.add_arguments(parser)
    actions = [action for action in parser._actions if action.dest not in _NOT_FOR_AGENTS]
    properties = {action.dest: _property(action) for action in actions}
    if "target" in properties:
        words = {"type": "array", "items": {"type": "string"}}
        properties["target_arguments"] = {**words, "description": "the target's own arguments"}
    return {
        "name": f"opguard_{name}",
        "description": verb.HELP,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": [action.dest for action in actions if action.required and action.nargs != "*"],
            "additionalProperties": False,
        },
        "command": ["opguard", name, "--json"],
        "options": {action.dest: action.option_strings[-1] for action in actions if action.option_strings},
        "positional": [action.dest for action in actions if not action.option_strings],
    }


def _property(action: argparse.Action) -> dict[str, Any]:
    """The schema of an argument."""
    if action.nargs == 0:
        return {"type": "boolean", **_described(action)}
    one: dict[str, Any] = {"type": _type(action)}
    if action.choices is not None:
        one["enum"] = list(action.choices)
    if action.nargs in ("*", "+"):
        return {"type": "array", "items": one, **_described(action)}
    return {**one, **_described(action)}


def _type(action: argparse.Action) -> str:
    """By what the argument's type returns; text where that is an object of ours."""
    if action.type is None:
        return "string"
    returned: Any = typing.get_type_hints(action.type).get("return")
    return _TYPES.get(returned, "string")


def _described(action: argparse.Action) -> dict[str, str]:
    """The help text, with the form that the command line shows where there is one."""
    form = action.metavar if isinstance(action.metavar, str) and action.metavar.lower() != action.dest else None
    parts = [part for part in (form, action.help) if part]
    return {"description": ": ".join(parts)} if parts else {}
