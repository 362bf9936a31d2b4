"""The writer: readable by any Arrow tool at any moment, small, and clear about what it cannot do."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from opguard_ci.errors import UsageError
from opguard_ci.trace.model import NULL, StepTable
from opguard_ci.trace.reader import read_trace
from opguard_ci.trace.writer import TraceWriter, manifest_text
from tests.strategies import traces
from tests.trace.folders import content, manifest, training_run, write


@given(traces())
@settings(max_examples=50)
def test_what_is_written_is_read(tables: list[StepTable]) -> None:
    """A trace comes back step by step, in order and at random, with equal events."""
    with tempfile.TemporaryDirectory() as folder:
        trace = read_trace(write(Path(folder) / "t", tables))
        assert [content(table) for table in trace.steps()] == [content(table) for table in tables]
        for table in reversed(tables):
            assert content(trace.step(table.step)) == content(table)


@given(traces())
@settings(max_examples=50)
def test_plain_arrow_sees_the_same_strings_and_values(tables: list[StepTable]) -> None:
    """`pa.ipc.open_stream` needs none of our code, whatever became of the dictionaries in between."""
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder) / "t", tables) / "events-0.arrows"
        with pa.ipc.open_stream(file.read_bytes()) as stream:
            rows = stream.read_all().to_pylist()
    events = [event for table in tables for event in table.events()]
    assert [row["index"] for row in rows] == [event.index for event in events]
    for row, event in zip(rows, events, strict=True):
        assert (row["op"], row["module"], row["stack"]) == (event.op, event.module, event.stack)
        assert (row["args"], row["key"], row["phase"], row["kind"]) == (event.args, event.key, event.phase, event.kind)
        assert row["reads"] == [
            {"value": read.value, "spec": read.spec, "flags": read.flags, "writers": list(read.writers)}
            for read in event.reads
        ]
        assert row["writes"] == [
            {"value": write.value, "spec": write.spec, "slot": write.slot, "flags": write.flags}
            for write in event.writes
        ]


def test_strings_of_another_table_replace_the_dictionary(tmp_path: Path) -> None:
    """Steps need not share their strings."""
    first, second = training_run(1, 5)[0], training_run(1, 7)[0]
    second.step, second.first = 1, 5
    second.writers = [NULL] * len(second.writers)
    trace = read_trace(write(tmp_path / "t", [first, second]))
    assert [content(table) for table in trace.steps()] == [content(first), content(second)]
    assert content(trace.step(1)) == content(second)


def test_an_event_costs_less_than_60_bytes(tmp_path: Path) -> None:
    """A realistic run of 20 steps with 670 events each, of which a value read and a value written cannot shrink."""
    folder = write(tmp_path / "t", training_run(20, 670))
    assert (folder / "events-0.arrows").stat().st_size / (20 * 670) < 60


def test_close_says_what_was_written(tmp_path: Path) -> None:
    """The entry of `objects` is the file's: sha256, bytes, events. A second close says it again."""
    writer = TraceWriter(tmp_path / "t")
    for table in training_run(2, 10):
        writer.write_step(table)
    data = {"sha256": "", "bytes": 0, "events": 20}
    entry = writer.close()
    content = (tmp_path / "t" / "events-0.arrows").read_bytes()
    data.update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    assert entry == {"events-0.arrows": data} == writer.close()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError) as caught:
        TraceWriter(tmp_path)
    assert caught.value.slug == "output-exists"
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_ranks_share_a_folder(tmp_path: Path) -> None:
    """Each rank has its own file, whichever starts first; a rank does not take another's place."""
    second, first = TraceWriter(tmp_path, rank=1), TraceWriter(tmp_path, rank=0)
    first.write_manifest(manifest(ranks=3))
    TraceWriter(tmp_path, rank=2).close()
    tables = training_run(2, 4)
    for writer in (first, second):
        for table in tables:
            writer.write_step(table)
    objects = {**first.close(), **second.close()}
    assert sorted(objects) == ["events-0.arrows", "events-1.arrows"]
    trace = read_trace(tmp_path)
    assert [content(table) for table in trace.steps(1)] == [content(table) for table in tables]
    assert list(trace.steps(2)) == []
    with pytest.raises(UsageError) as caught:
        TraceWriter(tmp_path, rank=1)
    assert caught.value.slug == "output-exists"


@pytest.mark.parametrize("blocker", ["file", "missing parent is a file"])
def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, blocker: str) -> None:
    """One sentence that names the folder."""
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" if blocker == "file" else tmp_path / "file" / "t"
    with pytest.raises(UsageError) as caught:
        TraceWriter(folder)
    assert caught.value.slug == "output-unwritable"
    assert str(folder) in caught.value.message


class _FullDisk:
    """A file on a disk that has room for so many more bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: memoryview) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._file.write(data[: self._room])
        self._room -= written
        return int(written)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 1, 100, 3000])
def test_a_full_disk_leaves_the_steps_before_it(tmp_path: Path, room: int) -> None:
    """`disk-full`, also for every later step; the trace stays readable and never calls itself complete."""
    tables = training_run(3, 50)
    writer = TraceWriter(tmp_path / "t")
    writer.write_manifest(manifest())
    writer.write_step(tables[0])
    writer._file._file = _FullDisk(writer._file._file, room)  # type: ignore[assignment]
    for table in (tables[1], tables[1]):
        with pytest.raises(UsageError) as caught:
            writer.write_step(table)
        assert caught.value.slug == "disk-full"
    objects = writer.close()
    writer.write_manifest(manifest(objects=objects))
    assert objects["events-0.arrows"]["events"] == 50
    assert [content(table) for table in read_trace(tmp_path / "t").steps()] == [content(tables[0])]


def test_steps_count_upwards(tmp_path: Path) -> None:
    """A step that is not later than the one before is refused, and named."""
    first, second = training_run(2, 4)
    second.step = 0
    writer = TraceWriter(tmp_path / "t")
    writer.write_step(first)
    with pytest.raises(UsageError, match="step 0 began after step 0"):
        writer.write_step(second)
    writer.close()


def test_a_step_beyond_the_limits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer never writes what the reader would refuse."""
    monkeypatch.setattr("opguard_ci.trace.writer.MAX_VALUES", 100)
    writer = TraceWriter(tmp_path / "t")
    with pytest.raises(UsageError) as caught:
        writer.write_step(training_run(1, 10)[0])
    assert caught.value.slug == "trace-too-large"
    writer.close()


def test_only_a_closed_trace_is_complete(tmp_path: Path) -> None:
    """A manifest written before the end says so, whatever else it says."""
    writer = TraceWriter(tmp_path / "t")
    writer.write_manifest({key: value for key, value in manifest().items() if key != "complete"})
    assert read_trace(tmp_path / "t").manifest["complete"] is False
    with pytest.raises(AssertionError):
        writer.write_manifest(manifest(complete=True))
    writer.close()


def test_text_that_is_not_unicode_is_kept_legible(tmp_path: Path) -> None:
    """File names may hold bytes that are not UTF-8; Python shows them as lone surrogates."""
    table = training_run(1, 3)[0]
    table.strings.stack.strings[0] = "caf\udce9.py\t1\tf\tx"
    folder = write(tmp_path / "t", [table], cwd="caf\udce9")
    trace = read_trace(folder)
    assert next(trace.steps()).event(0).stack == "caf\\udce9.py\t1\tf\tx"
    assert trace.manifest["cwd"] == "caf\udce9"


def test_nan_is_no_json() -> None:
    """A manifest with NaN would not be JSON, so it is a ValueError."""
    with pytest.raises(ValueError):
        manifest_text({"loss": float("nan")})


_ENDLESS = """
import sys
from pathlib import Path
from opguard_ci.trace.writer import TraceWriter
from tests.trace.folders import manifest, training_run
tables = training_run(400, 20)
writer = TraceWriter(Path(sys.argv[1]))
writer.write_manifest(manifest())
for table in tables:
    writer.write_step(table)
    print(table.step, flush=True)
"""


def test_a_killed_run_keeps_its_steps(tmp_path: Path) -> None:
    """After SIGKILL every step that was reported as written is there."""
    command = [sys.executable, "-c", _ENDLESS, str(tmp_path / "t")]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        for _ in range(7):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        last = max([last, *(int(line) for line in process.stdout if line.strip())])
    trace = read_trace(tmp_path / "t")
    assert trace.manifest["complete"] is False
    steps = [table.step for table in trace.steps()]
    assert steps == list(range(len(steps)))
    assert len(steps) > last


def test_writing_and_reading_are_quick(tmp_path: Path) -> None:
    """A few microseconds an event; the bounds leave room for a busy machine."""
    tables = training_run(10, 670)
    begun = time.process_time()
    folder = write(tmp_path / "t", tables)
    written = time.process_time()
    count = sum(len(table) for table in read_trace(folder).steps())
    read = time.process_time()
    assert (written - begun) / count < 40e-6
    assert (read - written) / count < 40e-6
