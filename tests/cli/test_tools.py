"""``opguard tools``: schemas that say what the command line takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opguard_ci.cli import _parser, main
from opguard_ci.commands.tools import VERBS, tool


def words_of(found: dict[str, Any], call: dict[str, Any]) -> list[str]:
    """The command line of a call, as ``tool`` describes it, without the program's name."""
    words = list(found["command"][1:])
    for name, flag in found["options"].items():
        if name not in call or call[name] is False:
            continue
        values = [] if call[name] is True else call[name] if isinstance(call[name], list) else [call[name]]
        words += [flag, *map(str, values)]
    for name in found["positional"]:
        value = call.get(name, [])
        words += value if isinstance(value, list) else [value]
    return words


@pytest.mark.parametrize("name", VERBS)
def test_a_schema_names_what_the_verb_takes(name: str) -> None:
    """Every argument of the parser but those for people, each with a type and a description."""
    found = tool(name)
    schema = found["parameters"]
    assert (found["name"], schema["type"], schema["additionalProperties"]) == (f"opguard_{name}", "object", False)
    assert set(schema["required"]) <= set(schema["properties"])
    for about in schema["properties"].values():
        assert about["type"] in ("string", "boolean", "integer", "number", "array") and about["description"]
    taken = set(vars(_parser().parse_args([name, *(["t"] if schema["required"] else [])])))
    assert set(schema["properties"]) - {"target_arguments"} == taken - {"verb", "version", "json", "run", "pdb"}
    assert schema["required"] == {"compare": ["target"], "show": ["trace"]}.get(name, [])


def test_types_are_those_of_the_parser() -> None:
    """Whole numbers, numbers, choices, switches and lists."""
    check, show = (tool(name)["parameters"]["properties"] for name in ("check", "show"))
    types = {"from_step": "integer", "timeout": "number", "bisect": "boolean", "reference": "string"}
    assert {name: check[name]["type"] for name in types} == types
    assert (check["target"]["type"], check["target"]["items"]) == ("array", {"type": "string"})
    assert check["missing"]["enum"] == ["fail", "reference", "skip"]
    assert (show["events"]["type"], show["limit"]["type"]) == ("string", "integer")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("show", {"trace": "runs/a", "events": "1..3", "tensors": True, "limit": 5}),
        ("compare", {"target": "a", "candidate": "b", "zoom": True, "strict": False, "html": "r.html"}),
        ("check", {"target": ["a.py:f", "b.py:g"], "reference": "HEAD~1", "timeout": 2.5}),
        ("bisect", {"target": "a.py:f", "good": "v1", "bad": "HEAD", "steps": 3}),
    ],
)
def test_a_call_becomes_a_command_line(name: str, call: dict[str, Any]) -> None:
    """What the parser reads from it is what was asked for."""
    found = tool(name)
    assert set(call) <= set(found["parameters"]["properties"])
    args = vars(_parser().parse_args(words_of(found, call)))
    assert args["json"] is True
    read = {key: args[key] for key in call}
    assert {key: str(value) if isinstance(call[key], str) else value for key, value in read.items()} == {
        key: str(read[key]) if key == "events" else value for key, value in call.items()
    }


def test_the_verb(capfd: pytest.CaptureFixture[str]) -> None:
    """One object under --json; without it the list."""
    assert main(["tools"]) == 0
    listed = json.loads(capfd.readouterr().out)
    assert main(["tools", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["verdict"], document["tools"]) == ("ok", listed)
