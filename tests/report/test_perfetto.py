"""Two runs as a file for Perfetto."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from opguard_ci.compare import compare_traces, timeline
from opguard_ci.report.perfetto import perfetto
from opguard_ci.trace.model import Event
from tests.compare.build import loss, op, trace
from tests.compare.running import MemoryTrace
from tests.strategies import traces

Rows = list[dict[str, Any]]


def drawn(reference: MemoryTrace, candidate: MemoryTrace, target: str = "train.py") -> Rows:
    """The rows of the file, whose form is checked."""
    document = {**compare_traces(reference, candidate).to_json(), "target": target}
    text = perfetto(document, [timeline.timeline(reference, candidate, document["first_divergence"])])
    file = json.loads(text)
    assert set(file) == {"otherData", "displayTimeUnit", "traceEvents"}
    assert file["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, str) for value in file["otherData"].values())
    require_form(file["traceEvents"])
    rows: Rows = file["traceEvents"]
    return rows


KEYS: dict[str, dict[str, type]] = {
    "M": {"args": dict},
    "X": {"cat": str, "ts": int, "dur": int},
    "i": {"cat": str, "ts": int, "s": str},
    "s": {"cat": str, "ts": int, "id": int},
    "f": {"cat": str, "ts": int, "id": int, "bp": str},
}
"""What the format wants of each kind of event, beside ``ph``, ``name``, ``pid`` and ``tid``; times in microseconds."""


def require_form(rows: Rows) -> None:
    """Chrome's trace format: events with the keys of their kind, in order of time; complete ones nest within their
    thread, instants and flows hit one, and a flow ends where it began or later.
    """
    for row in rows:
        wanted = {"ph": str, "name": str, "pid": int, "tid": int, **KEYS[row["ph"]]}
        assert {key: type(row[key]) for key in wanted} == wanted, row
        assert set(row) <= {*wanted, "args"}, row
    times = [row.get("ts", -1) for row in rows]
    assert times == sorted(times)
    metadata = {"process_name": {"name"}, "process_sort_index": {"sort_index"}, "thread_name": {"name"}}
    assert all(set(row["args"]) == metadata[row["name"]] for row in rows if row["ph"] == "M")
    named = {(row["pid"], row["tid"]) for row in rows if row["name"] == "thread_name"}
    assert {(row["pid"], row["tid"]) for row in rows if row["ph"] != "M"} <= named
    assert all(row["s"] == "p" for row in rows if row["ph"] == "i")
    starts, ends = ({row["id"]: row["ts"] for row in rows if row["ph"] == kind} for kind in "sf")
    assert starts.keys() == ends.keys()
    assert all(starts[flow] <= ends[flow] for flow in starts)
    open_until: dict[tuple[int, int], list[int]] = {}
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in rows:
        assert row["name"], row
        thread = row["pid"], row["tid"]
        if row["ph"] != "X":
            continue
        begin, end = row["ts"], row["ts"] + row["dur"]
        assert 0 <= begin < end
        spans.setdefault(thread, []).append((begin, end))
    for thread, found in spans.items():
        for begin, end in sorted(found, key=lambda span: (span[0], -span[1])):
            stack = open_until.setdefault(thread, [])
            while stack and stack[-1] <= begin:
                stack.pop()
            assert not stack or end <= stack[-1], "slices of a thread overlap"
            stack.append(end)
    for row in rows:
        if row["ph"] in ("i", "s", "f"):
            thread = row["pid"], row["tid"]
            assert any(begin <= row["ts"] < end for begin, end in spans[thread]), row


def operators(rows: Rows, process: int) -> dict[str, int]:
    """When each operator of a run begins."""
    return {row["name"]: row["ts"] for row in rows if row["pid"] == process and "event" in row.get("args", {})}


def test_two_processes_in_one_time() -> None:
    """What stands at the same place has the same moment; what one run lacks is a gap; around it step, phase, module."""
    rows = drawn(
        trace([op("a", [10], [20], module="net.up"), op("b", [20], [21]), loss(21)]),
        trace([op("a", [10], [20], module="net.up"), op("new", [10], [30]), op("b", [20], [21]), loss(21)]),
    )
    names = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    assert names == {1: "reference", 2: "candidate"}
    reference, candidate = operators(rows, 1), operators(rows, 2)
    assert reference["aten.a.default"] == candidate["aten.a.default"]
    assert reference["aten.b.default"] == candidate["aten.b.default"] == candidate["aten.new.default"] + 10
    places = [row["name"] for row in rows if row["pid"] == 1 and row.get("cat") == "place"]
    assert places == ["step 0", "forward", "net.up"]
    (new,) = (row for row in rows if row["name"] == "aten.new.default")
    assert (new["cat"], new["args"]["arguments"], new["args"]["outputs"]) == ("candidate", "t0=%0", f"{30:016x}")


def test_the_divergence_is_marked_on_both_sides() -> None:
    """An instant with what it is, and an arrow from the reference's operator to the candidate's."""
    good = [op("f", [10], [20], extra="eps=1"), op("g", [20], [30]), loss(30)]
    bad = [op("f", [10], [21], extra="eps=2"), op("g", [21], [31]), loss(31)]
    rows = drawn(trace(good, good), trace(good, bad))
    marks = [row for row in rows if row["ph"] == "i"]
    assert [row["pid"] for row in marks] == [1, 2]
    assert marks[0]["name"].startswith("first divergence: aten.f.default: arguments: eps 1 -> 2")
    (start,), (end,) = ([row for row in rows if row["ph"] == kind] for kind in "sf")
    assert (start["pid"], end["pid"], start["id"], start["ts"]) == (1, 2, end["id"], end["ts"])


def test_the_arrow_never_goes_back_in_time() -> None:
    """Viewers drop a flow that ends before it begins: where the candidate comes to it earlier, it begins there."""
    good, bad = trace([op("f", [10], [20]), loss(20)]), trace([op("f", [10], [21]), loss(21)])
    document = compare_traces(good, bad).to_json()
    mine, other = (run.events()[0] for run in (good, bad))
    moments = [timeline.Moment("moved", None, other), timeline.Moment("moved", mine, None)]
    late = timeline.Timeline([(0, moments)], 1)
    rows: Rows = json.loads(perfetto(document, [late]))["traceEvents"]
    require_form(rows)
    (start,), (end,) = ([row for row in rows if row["ph"] == kind] for kind in "sf")
    assert (start["pid"], end["pid"], end["ts"] - start["ts"]) == (2, 1, 10)


def test_lanes_are_threads_and_text_is_clean() -> None:
    """Each lane has its name; what a run calls itself is shown without control characters."""
    assert "train\\x1b" not in json.dumps(drawn(trace([loss(10)]), trace([loss(10)]), "train\x1b[2J.py"))
    rows = drawn(trace([op("a", [10], [20])]), trace([op("a", [10], [20])]))
    assert {row["args"]["name"] for row in rows if row["name"] == "thread_name"} == {"lane 0"}


def test_long_runs_are_drawn_around_the_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole steps, as many as there is room for, and one in any case."""
    good = [op("f", [10], [20], extra="eps=1"), loss(20)]
    bad = [op("f", [10], [21], extra="eps=2"), loss(21)]
    runs = trace(*[good] * 9), trace(*[good] * 5, bad, *[good] * 3)
    monkeypatch.setattr(timeline, "MAX_MOMENTS", 6)
    found = timeline.timeline(*runs, compare_traces(*runs).first_divergence)
    assert ([step for step, _ in found.steps], found.num_steps) == ([4, 5, 6], 9)
    monkeypatch.setattr(timeline, "MAX_MOMENTS", 1)
    assert [step for step, _ in timeline.timeline(*runs, None).steps] == [0]


@settings(max_examples=20, deadline=None)
@given(reference=traces(), candidate=traces())
def test_every_operator_is_drawn_once(reference: list[Any], candidate: list[Any]) -> None:
    """Of any two runs, in a file of the right form."""
    runs = MemoryTrace(reference), MemoryTrace(candidate)
    rows = drawn(*runs)
    for process, run in enumerate(runs, 1):
        events: list[Event] = [table.event(row) for table in run.tables.values() for row in range(len(table))]
        wanted = [event.index for event in events if event.kind not in ("view", "alloc", "contract")]
        found = [row["args"]["event"] for row in rows if row["pid"] == process and "event" in row.get("args", {})]
        assert sorted(found) == wanted


def test_ranks_are_processes_of_their_own() -> None:
    """A pair for each rank; the divergence is marked in the one that is named."""
    good = trace([op("f", [10], [20], extra="eps=1"), loss(20)])
    bad = trace([op("f", [10], [21], extra="eps=2"), loss(21)])
    document = compare_traces(good, bad).to_json()
    document["first_divergence"]["rank"] = 1
    ranks = [timeline.timeline(good, good, None), timeline.timeline(good, bad, document["first_divergence"])]
    rows: Rows = json.loads(perfetto(document, ranks))["traceEvents"]
    require_form(rows)
    names = [row["args"]["name"] for row in rows if row["name"] == "process_name"]
    assert names == ["reference, rank 0", "candidate, rank 0", "reference, rank 1", "candidate, rank 1"]
    assert [row["pid"] for row in rows if row["ph"] == "i"] == [3, 4]
