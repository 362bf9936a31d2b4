"""Numbers beside the trace: written once each, read back, checked."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.errors import UsageError
from opguard_ci.trace.known import KNOWN_SCHEMA, MAX_NUMBERS, known_batch, known_rows
from opguard_ci.trace.reader import read_trace
from opguard_ci.trace.writer import TraceWriter
from tests.trace.folders import manifest

ROWS = st.dictionaries(st.tuples(st.integers(1, 2**64 - 1), st.text(max_size=4)), st.binary(max_size=9), max_size=4)


@given(st.lists(ROWS, max_size=3))
def test_what_is_kept_is_read(batches: list[dict[tuple[int, str], bytes]]):
    """Value, spec and numbers, over any number of batches."""
    expected = {key: numbers for rows in batches for key, numbers in rows.items()}
    assert known_rows(known_batch(list(rows.items())) for rows in batches) == expected


def written(folder: Path) -> Path:
    writer = TraceWriter(folder)
    writer.write_known([((7, "float32[]"), b"abcd")])
    writer.write_known([((8, "float32[]"), b"efgh")])
    objects = writer.close()
    writer.write_manifest(manifest(objects=objects, complete=True))
    return folder


def test_a_trace_knows_the_numbers_of_its_values(tmp_path: Path):
    """Its manifest names the file, and its sha256."""
    trace = read_trace(written(tmp_path / "t"))
    assert trace.numbers(7, "float32[]") == b"abcd"
    assert trace.numbers(8, "float32[]") == b"efgh"
    assert trace.numbers(8, "int32[]") is None
    assert set(trace.manifest["objects"]) == {"events-0.arrows", "values-0.arrows"}


def test_a_trace_that_kept_none_has_no_file(tmp_path: Path):
    """And no number."""
    writer = TraceWriter(tmp_path / "t")
    writer.write_manifest(manifest(objects=writer.close(), complete=True))
    assert read_trace(tmp_path / "t").numbers(7, "float32[]") is None
    assert not (tmp_path / "t" / "values-0.arrows").exists()


def test_a_file_that_is_gone_is_missed(tmp_path: Path):
    """As the events are: a golden's commit can then be run again."""
    (written(tmp_path / "t") / "values-0.arrows").unlink()
    with pytest.raises(UsageError, match=r"values-0\.arrows") as caught:
        read_trace(tmp_path / "t").numbers(7, "float32[]")
    assert caught.value.slug == "events-missing"


def test_a_changed_file_is_damaged(tmp_path: Path):
    """Its sha256 is in the manifest."""
    file = written(tmp_path / "t") / "values-0.arrows"
    file.write_bytes(file.read_bytes().replace(b"float32", b"float64"))
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(tmp_path / "t").numbers(7, "float32[]")


def test_other_columns_and_half_rows_are_refused():
    """Whoever wrote them."""
    other = pa.RecordBatch.from_pydict({"value": [1]})
    half = pa.RecordBatch.from_arrays(
        [pa.array([1], pa.uint64()), pa.array(["x"], pa.string()), pa.array([None], pa.large_binary())],
        schema=KNOWN_SCHEMA,
    )
    for batch in (other, half):
        with pytest.raises(ValueError, match=r"columns|whole"):
            known_rows(iter([batch]))


def test_more_than_a_trace_holds_is_refused():
    """Before it becomes Python's."""
    data = known_batch([((1, "x"), bytes(MAX_NUMBERS + 1))])
    with pytest.raises(ValueError, match="more than"):
        known_rows(iter([data]))
