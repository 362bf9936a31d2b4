"""Compiled graphs are judged like operators: by what goes in and what comes out."""

from __future__ import annotations

from dataclasses import replace

from opguard_ci.compare import compare_traces
from opguard_ci.trace.model import Event

from .build import first, loss, op, trace


def graph(given: int, made: int, source: str = "a") -> Event:
    """One call of a compiled graph."""
    event = op("forward", [given], [made], kind="region")
    return replace(event, op="inductor.forward", args=f"graph={source}, inputs=[%]")


def test_another_graph() -> None:
    """The same inputs, compiled from something else, and other values: the code differs."""
    runs = trace([graph(10, 20), loss(20)]), trace([graph(10, 21, "b"), loss(21)])
    assert first(*runs) == ("code", 0, "candidate")
    found = compare_traces(*runs).first_divergence
    assert found is not None
    assert (found["op"], found["detail"]) == ("inductor.forward", "same inputs; another compiled graph")


def test_another_graph_with_the_same_values() -> None:
    """Compiled from something else, and it makes no difference."""
    assert compare_traces(trace([graph(10, 20), loss(20)]), trace([graph(10, 20, "b"), loss(20)])).passed


def test_the_same_graph_gives_something_else() -> None:
    """The same graph and inputs: what runs in it gave other bits."""
    assert first(trace([graph(10, 20), loss(20)]), trace([graph(10, 21), loss(21)])) == ("kernel", 0, "candidate")


def test_a_graph_passes_on_what_came_before() -> None:
    """It is no origin where its inputs differ."""
    sides = [trace([op("f", [10], [n], extra=f"a={n}"), graph(n, n + 10), loss(n + 10)]) for n in (20, 21)]
    assert first(*sides) == ("arguments", 0, "candidate")
