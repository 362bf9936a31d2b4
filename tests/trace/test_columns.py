"""Record batches: what any Arrow tool sees, and what a stranger's may not hold."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given

from opguard_ci.trace.columns import ARROW_SCHEMA, Decoder, Encoder
from opguard_ci.trace.model import PHASES, StepTable
from tests.strategies import step_tables, traces
from tests.trace.folders import content, training_run


@given(traces())
def test_a_step_comes_back_equal(tables: list[StepTable]) -> None:
    """Encoding and decoding changes nothing, not even the numbers of the strings."""
    encoder, decoder = Encoder(), Decoder()
    for table in tables:
        batch = encoder.batch(table)
        back = decoder.arrays(batch, table.step, table.first).table()
        assert content(back) == content(table)
        assert back.stack == table.stack


@given(step_tables())
def test_another_order_of_the_dictionaries_makes_no_difference(table: StepTable) -> None:
    """A trace that another tool wrote again, with its own dictionaries, reads the same."""
    batch = Encoder().batch(table)
    columns = []
    for name in ARROW_SCHEMA.names:
        column = batch.column(name)
        if pa.types.is_dictionary(column.type):
            entries = column.dictionary.to_pylist()
            turned = pa.array(entries[::-1], pa.string())
            places = pa.array([None if i is None else len(entries) - 1 - i for i in column.indices.to_pylist()])
            column = pa.DictionaryArray.from_arrays(places.cast(column.type.index_type), turned)
        columns.append(column)
    turned_batch = pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
    assert content(Decoder().arrays(turned_batch, table.step, table.first).table()) == content(table)


def _with(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(ARROW_SCHEMA.get_field_index(name), ARROW_SCHEMA.field(name), column)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("index", pa.array([1, 2, 3], pa.int32())),
        ("step", pa.array([0, 1, 0], pa.int32())),
        ("lane", pa.array([0, -1, 0], pa.int32())),
        ("lane", pa.array([0, None, 0], pa.int32())),
        ("generator", pa.array([0, -7, 0], pa.int32())),
        ("phase", pa.DictionaryArray.from_arrays(pa.array([0, 0, 0], pa.int8()), pa.array(["lunch"]))),
        ("phase", pa.DictionaryArray.from_arrays(pa.array([0, 0, 99], pa.int8()), pa.array(PHASES), safe=False)),
        ("op", pa.DictionaryArray.from_arrays(pa.array([0, 0, 1], pa.int32()), pa.array(["aten.mm.default", None]))),
        ("op", pa.DictionaryArray.from_arrays(pa.array([0, None, 0], pa.int32()), pa.array(["aten.mm.default"]))),
        ("op", pa.DictionaryArray.from_arrays(pa.array([0, 9, 0], pa.int32()), pa.array(["mm"]), safe=False)),
        ("op", pa.DictionaryArray.from_arrays(pa.array([0, -2, 0], pa.int32()), pa.array(["mm"]), safe=False)),
        ("reads", pa.array([None, [], []], ARROW_SCHEMA.field("reads").type)),
        ("reads", pa.array([[None], [], []], ARROW_SCHEMA.field("reads").type)),
        (
            "reads",
            pa.array(
                [[{"value": 1, "spec": "f", "flags": 0, "writers": [4]}], [], []], ARROW_SCHEMA.field("reads").type
            ),
        ),
        (
            "reads",
            pa.array(
                [[{"value": 1, "spec": "f", "flags": 0, "writers": None}], [], []], ARROW_SCHEMA.field("reads").type
            ),
        ),
        (
            "writes",
            pa.array([[{"value": 1, "spec": "f", "flags": 0, "slot": -9}], [], []], ARROW_SCHEMA.field("writes").type),
        ),
    ],
)
def test_what_contradicts_itself_is_refused(name: str, column: pa.Array) -> None:
    """Numbers outside their range, absent values and unknown names are a ValueError."""
    batch = _with(Encoder().batch(training_run(1, 3)[0]), name, column)
    with pytest.raises(ValueError):
        Decoder().arrays(batch, 0, 0)
