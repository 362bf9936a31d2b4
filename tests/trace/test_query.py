"""Questions about a trace: bounded answers that say how to go on."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.errors import UsageError
from opguard_ci.trace import query
from opguard_ci.trace.model import OUTSIDE, Draw, Event, Read, Write
from opguard_ci.trace.reader import Trace, read_trace
from tests.strategies import table_of
from tests.trace.folders import contract_event, training_run, write


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A run of 5 steps with 120 events each."""
    return read_trace(write(tmp_path_factory.mktemp("query") / "a run", training_run(5, 120)))


def norm(**changes: Any) -> Event:
    """A call with everything a trace can say."""
    fields: dict[str, Any] = {
        "index": 0,
        "lane": 1,
        "step": 0,
        "phase": "forward",
        "kind": "op",
        "op": "aten.native_layer_norm.default",
        "module": "blocks.1.norm",
        "stack": "src/model.py\t88\tforward\t    x = self.norm(x)\ntrain.py\t12\tmain\tloss = model(x)",
        "args": "input=%0, eps=1e-05",
        "key": None,
        "flags": 2,
        "reads": (Read(0xAB, "float32[4,64]", (-1,), OUTSIDE),),
        "writes": (Write(0xCD, "float32[4,64]", 0, 0), Write(0xEF, "float32[64]", ~0, 2)),
        "draw": Draw(0, 1, 2),
    }
    return Event(**{**fields, **changes})


@pytest.fixture
def small(tmp_path: Path) -> Trace:
    """One step: three calls and a loss."""
    calls = [norm(), norm(op="aten.mm.default", stack=None, module=None), norm(args="input=%0, eps=1e-06")]
    return read_trace(write(tmp_path / "t", [table_of([*calls, contract_event("loss", "loss", 7)])]))


def indices(answer: dict[str, Any]) -> list[int]:
    return [event["index"] for event in answer["events"]]


def follow(trace: Trace, answer: dict[str, Any]) -> dict[str, Any]:
    """Run the command that an answer names."""
    program, verb, path, *options = shlex.split(answer["next"])
    assert (program, verb, path) == ("opguard", "show", str(trace.path))
    asked: dict[str, Any] = {}
    while options:
        option = options.pop(0)
        if option == "--events":
            start, _, last = options.pop(0).partition("..")
            asked["events"] = range(int(start), int(last) + 1)
        elif option == "--source":
            file, _, line = options.pop(0).rpartition(":")
            asked["source"] = (file, int(line))
        elif option == "--tensors":
            asked["tensors"] = True
        elif option == "--limit":
            asked["limit"] = int(options.pop(0))
        else:
            name, _, asked["search"] = option.partition("=")
            assert name == "--search"
    return query.show(trace, **asked)


def test_a_range_shows_its_events(run: Trace) -> None:
    """Event numbers count over the whole trace; what lies beyond its end is not missed."""
    assert indices(query.show(run, events=range(118, 123))) == [118, 119, 120, 121, 122]
    assert indices(query.show(run, events=range(598, 10_000))) == [598, 599]
    answer = query.show(run, events=range(700, 710))
    assert (answer["events"], answer["matches"], answer["next"]) == ([], 0, None)


@pytest.mark.parametrize("limit", [7, 50])
@pytest.mark.parametrize(
    "question",
    [
        {"events": range(30, 500)},
        {"search": "OPERATOR_1"},
        {"search": "alpha=7"},
        {"search": "block3.py"},
        {"search": "float32[3,"},
        {"tensors": True},
        {"tensors": True, "search": "attention", "events": range(100, 400)},
    ],
)
def test_following_the_commands_shows_everything_once(run: Trace, question: dict[str, Any], limit: int) -> None:
    """The command at the end of each answer continues where it stopped, until nothing is left."""
    everything = query.show(run, **question, limit=10_000)
    assert everything["next"] is None and everything["more"] == 0
    answer, seen = query.show(run, **question, limit=limit), []
    assert answer["matches"] == everything["matches"] == len(everything["events"])
    while True:
        seen += indices(answer)
        assert answer["more"] == answer["matches"] - len(answer["events"])
        if answer["next"] is None:
            break
        assert len(answer["events"]) == limit
        answer = follow(run, answer)
    assert seen == indices(everything)


def test_a_range_is_read_without_the_rest(run: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the steps that hold the events are unpacked."""
    read: list[int] = []
    step = run.step
    monkeypatch.setattr(run, "step", lambda number, rank=0: (read.append(number), step(number, rank))[1])
    monkeypatch.setattr(run, "steps", None)
    query.show(run, events=range(130, 10_000), limit=5)
    assert read == [1]


def test_search_looks_everywhere(small: Trace) -> None:
    """Operator, module, arguments, stack, spec, whatever the case; and values by their hex digits."""
    for text, expected in (
        ("LAYER_NORM", [0, 2]),
        ("blocks.1", [0, 2]),
        ("1e-06", [2]),
        ("self.norm(x)", [0, 2]),
        ("float32[64]", [0, 1, 2]),
        ("00000000000000ef", [0, 1, 2]),
        ("0x0000000000000007", [3]),
        ("00000000000000ff", []),
        ("loss", [0, 2, 3]),
    ):
        assert indices(query.show(small, search=text)) == expected


def test_source_finds_a_line_in_any_frame(small: Trace) -> None:
    """The file as recorded, its end, or its whole path; the frame shown is the one that was asked for."""
    for file in ("train.py", "./train.py", "/home/me/project/train.py"):
        answer = query.show(small, source=(file, 12))
        assert indices(answer) == [0, 2]
        assert answer["events"][0]["frame"] == {
            "file": "train.py",
            "line": 12,
            "function": "main",
            "source": "loss = model(x)",
        }
    assert indices(query.show(small, source=("model.py", 88))) == [0, 2]
    assert indices(query.show(small, source=("model.py", 12))) == []
    assert indices(query.show(small, source=("odel.py", 88))) == []


def test_tensors_adds_values_and_links(small: Trace) -> None:
    """Values as hex, specs, writers, flags, generator states and the whole stack."""
    event = query.show(small, events=range(0, 1), tensors=True)["events"][0]
    assert event["flags"] == ["random"]
    assert event["reads"] == [
        {"value": "00000000000000ab", "spec": "float32[4,64]", "writers": [-1], "flags": ["outside"]}
    ]
    assert event["writes"] == [
        {"value": "00000000000000cd", "spec": "float32[4,64]", "output": 0, "read": None, "flags": []},
        {"value": "00000000000000ef", "spec": "float32[64]", "output": None, "read": 0, "flags": ["hidden"]},
    ]
    assert event["draw"] == {"generator": 0, "before": f"{1:016x}", "after": f"{2:016x}"}
    assert [frame["line"] for frame in event["stack"]] == [88, 12]
    assert "reads" not in query.show(small, events=range(0, 1))["events"][0]


def test_an_event_with_many_tensors_is_cut(tmp_path: Path) -> None:
    """A fused optimizer call may read thousands."""
    event = norm(reads=tuple(Read(number + 1, "float32[]", (), 0) for number in range(1000)))
    trace = read_trace(write(tmp_path / "t", [table_of([event])]))
    answer = query.show(trace, tensors=True)
    assert len(answer["events"][0]["reads"]) == 100
    assert answer["events"][0]["left_out"] == {"reads": 900, "writes": 0}
    assert "… and 900 more reads" in query.render(answer)


def test_the_summary_says_what_the_trace_is(run: Trace) -> None:
    """Manifest facts, steps, operators by count; lists are cut, and by how much is said."""
    answer = query.show(run)
    assert answer["target"] == "train.py:main"
    assert answer["environment"] == "k" * 16
    assert answer["events_in_trace"] == 600
    assert answer["steps"][1] == {"step": 1, "first": 120, "events": 120}
    counts = [entry["count"] for entry in answer["operators"]]
    assert len(counts) == 20 and counts == sorted(counts, reverse=True)
    operators = {table.strings.op.get(number) for table in run.steps() for number in table.op}
    assert answer["left_out"] == {"operators": len(operators) - 20}
    text = query.render(answer)
    assert "step 1: 120 events  #120..239" in text
    assert f"opguard show '{run.path}' --events 0..49" in text


def test_a_golden_without_its_events_has_a_summary(tmp_path: Path) -> None:
    """The manifest tells the steps."""
    folder = write(tmp_path / "t", training_run(2, 3))
    (folder / "events-0.arrows").unlink()
    answer = query.show(read_trace(folder))
    assert answer["events_in_trace"] == 6 and answer["operators"] == []
    assert "events-0.arrows" in query.render(answer)


def test_an_incomplete_trace_says_so(tmp_path: Path) -> None:
    """With the outcome and the operator that was begun last."""
    outcome = {"status": "untestable", "slug": "crashed", "message": "SIGSEGV", "exit": None}
    changes = {"complete": False, "outcome": outcome, "last_operator": "aten.mm.default", "notes": ["a note"]}
    changes["findings"] = [{"step": 0, "op": "aten.mm.default", "cause": "uninitialised"}]
    text = query.render(query.show(read_trace(write(tmp_path / "t", training_run(1, 3), **changes))))
    for part in ("did not get to its end", "crashed, SIGSEGV", "begun: aten.mm.default", "a note", "uninitialised"):
        assert part in text


def test_answers_are_json_and_text_is_printable(tmp_path: Path) -> None:
    """A stranger's strings neither drive the terminal nor fill it."""
    event = norm(op="\x1b[2Jevil\x07", args="a" * 100_000, module="x\ny", stack="f\x1b\tNaN\t\u202eg\th\nrubbish")
    trace = read_trace(write(tmp_path / "t", [table_of([event])], target="\x1b]0;title\x07"))
    for answer in (query.show(trace), query.show(trace, tensors=True)):
        json.dumps(answer, allow_nan=False)
        text = query.render(answer)
        assert all(letter.isprintable() for letter in text.replace("\n", ""))
        assert len(text) < 10_000


def test_a_limit_below_one_is_refused(run: Trace) -> None:
    """It would show nothing."""
    with pytest.raises(UsageError):
        query.show(run, events=range(5), limit=0)


def test_ranks_are_asked_one_by_one(tmp_path: Path) -> None:
    """Another rank's answers name the rank in the next command."""
    folder = write(tmp_path / "t", training_run(1, 60), complete=False, ranks=2)
    (folder / "events-1.arrows").write_bytes((folder / "events-0.arrows").read_bytes())
    answer = query.show(read_trace(folder), tensors=True, rank=1)
    assert answer["rank"] == 1
    assert answer["next"].endswith("--events 50..59 --tensors --rank 1")
