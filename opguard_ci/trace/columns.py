"""Steps as Arrow record batches and back. Pure: arrays in, arrays out."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from opguard_ci.trace.arrays import Numbers, StepArrays
from opguard_ci.trace.model import KINDS, NULL, PHASES, SCHEMA, Interner, StepTable, Strings

MAX_VALUES: Final = 1 << 25
"""Most values in all columns of one step together: what a reader will turn into Python numbers at once."""
MAX_EVENTS: Final = (1 << 31) - 1
"""Most events of one trace: their numbers are 32 bits wide."""
MAX_TEXT: Final = 1 << 24
"""Longest string, in bytes."""

_TEXT = pa.dictionary(pa.int32(), pa.string())
_NAME = pa.dictionary(pa.int8(), pa.string())
# Lists of structs and not one list column per field: the list offsets are then stored once, a quarter of the file less.
READ: Final = pa.struct(
    [("value", pa.uint64()), ("spec", _TEXT), ("flags", pa.uint8()), ("writers", pa.list_(pa.int32()))]
)
WRITE: Final = pa.struct([("value", pa.uint64()), ("spec", _TEXT), ("slot", pa.int32()), ("flags", pa.uint8())])
ARROW_SCHEMA: Final = pa.schema(
    [
        ("step", pa.int32()),
        ("index", pa.int32()),
        ("lane", pa.int32()),
        ("phase", _NAME),
        ("kind", _NAME),
        ("op", _TEXT),
        ("module", _TEXT),
        ("stack", _TEXT),
        ("args", _TEXT),
        ("key", _TEXT),
        ("flags", pa.uint8()),
        ("generator", pa.int32()),
        ("state_before", pa.uint64()),
        ("state_after", pa.uint64()),
        ("reads", pa.list_(READ)),
        ("writes", pa.list_(WRITE)),
    ],
    metadata={"opguard_ci.schema": str(SCHEMA)},
)
_INTERNED: Final = ("op", "module", "stack", "args", "key")
_NULLABLE: Final = frozenset({"module", "stack", "args", "key", "generator"})
_PHASE_NAMES: Final = pa.array(PHASES, pa.string())
_KIND_NAMES: Final = pa.array(KINDS, pa.string())


class Encoder:
    """Turns the steps of one trace into record batches.

    Dictionaries only ever grow at their end, so that the stream carries each string once, as a dictionary delta.
    """

    __slots__ = ("_dictionaries",)

    def __init__(self) -> None:
        self._dictionaries: dict[str, tuple[Interner, pa.Array]] = {}

    def batch(self, table: StepTable) -> pa.RecordBatch:
        """The record batch of a step."""
        rows, strings = len(table), table.strings
        columns: dict[str, pa.Array] = {
            "step": pa.array(np.full(rows, table.step, np.int32)),
            "index": pa.array(np.arange(table.first, table.first + rows, dtype=np.int32)),
            "lane": _array(table.lane, np.int32),
            "phase": pa.DictionaryArray.from_arrays(_array(table.phase, np.int8), _PHASE_NAMES),
            "kind": pa.DictionaryArray.from_arrays(_array(table.kind, np.int8), _KIND_NAMES),
        }
        for name in _INTERNED:
            columns[name] = self._text(name, getattr(table, name), getattr(strings, name))
        columns["flags"] = _array(table.flags, np.uint8)
        columns["generator"] = _nullable(table.generator)
        columns["state_before"] = _array(table.state_before, np.uint64)
        columns["state_after"] = _array(table.state_after, np.uint64)
        columns["reads"] = _lists(
            table.read_offsets,
            READ,
            [
                _array(table.read_value, np.uint64),
                self._text("spec", table.read_spec, strings.spec),
                _array(table.read_flags, np.uint8),
                pa.ListArray.from_arrays(_array(table.writer_offsets, np.int32), _array(table.writers, np.int32)),
            ],
        )
        columns["writes"] = _lists(
            table.write_offsets,
            WRITE,
            [
                _array(table.write_value, np.uint64),
                self._text("spec", table.write_spec, strings.spec),
                _array(table.write_slot, np.int32),
                _array(table.write_flags, np.uint8),
            ],
        )
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=ARROW_SCHEMA)

    def _text(self, name: str, ids: list[int], interner: Interner) -> pa.Array:
        known = self._dictionaries.get(name)
        dictionary = known[1] if known is not None and known[0] is interner else pa.array([], pa.string())
        if len(dictionary) < len(interner.strings):
            dictionary = pa.concat_arrays([dictionary, _strings(interner.strings[len(dictionary) :])])
        self._dictionaries[name] = (interner, dictionary)
        return pa.DictionaryArray.from_arrays(_nullable(ids), dictionary)


class Decoder:
    """Turns record batches back into steps that share one set of interned strings.

    A stranger's batch is checked in full; what is wrong with it is raised as ``ValueError`` (Arrow's errors are such).
    """

    __slots__ = ("_known", "strings")

    def __init__(self) -> None:
        self.strings = Strings()
        # By column: the dictionary last met, and the number of each of its entries in our own tables.
        self._known: dict[str, tuple[pa.Array, Numbers]] = {}

    def arrays(self, batch: pa.RecordBatch, step: int, first: int) -> StepArrays:
        """The step that a record batch holds; it must be step ``step``, and its events ``first`` and up."""
        batch.validate(full=True)
        columns = {name: batch.column(name) for name in ARROW_SCHEMA.names}
        for name, column in columns.items():
            if column.null_count and name not in _NULLABLE:
                raise ValueError(f"column {name} has nulls")
        reads, writes = _items(columns["reads"], "reads"), _items(columns["writes"], "writes")
        writers = reads.field("writers")
        rows = batch.num_rows
        if not np.array_equal(_numpy(columns["index"]), np.arange(first, first + rows)):
            raise ValueError("event numbers do not count up by one")
        if not bool(np.all(_numpy(columns["step"]) == step)):
            raise ValueError(f"an event of step {step} says that it belongs to another step")
        written_by = _numpy(writers.flatten())
        if len(written_by) and (written_by.min() < NULL or written_by.max() >= first + rows):
            raise ValueError("a read names a writer that does not exist")
        _check_slots(columns["reads"], columns["writes"], _numpy(writes.field("slot")))
        lane, generator = _numpy(columns["lane"]), _filled(columns["generator"])
        if rows and (lane.min() < 0 or generator.min() < NULL):
            raise ValueError("a lane or generator number is negative")
        return StepArrays(
            step=step,
            first=first,
            strings=self.strings,
            lane=lane,
            phase=_named(columns["phase"], PHASES),
            kind=_named(columns["kind"], KINDS),
            op=self._ids("op", columns["op"]),
            module=self._ids("module", columns["module"]),
            stack=self._ids("stack", columns["stack"]),
            args=self._ids("args", columns["args"]),
            key=self._ids("key", columns["key"]),
            flags=_numpy(columns["flags"]),
            generator=generator,
            state_before=_numpy(columns["state_before"]),
            state_after=_numpy(columns["state_after"]),
            read_offsets=_offsets(columns["reads"]),
            read_value=_numpy(reads.field("value")),
            read_spec=self._ids("spec", reads.field("spec")),
            read_flags=_numpy(reads.field("flags")),
            writer_offsets=_offsets(writers),
            writers=written_by,
            write_offsets=_offsets(columns["writes"]),
            write_value=_numpy(writes.field("value")),
            write_spec=self._ids("spec", writes.field("spec")),
            write_slot=_numpy(writes.field("slot")),
            write_flags=_numpy(writes.field("flags")),
        )

    def _ids(self, name: str, column: pa.DictionaryArray) -> Numbers:
        numbers = self._numbers(name, column.dictionary)
        indices = _filled(column.indices)
        # The extra last entry answers for index -1.
        return indices if numbers is None else np.append(numbers, NULL)[indices]

    def _numbers(self, name: str, dictionary: pa.Array) -> Numbers | None:
        """Our number of each entry of ``dictionary``; None if they are the same."""
        known, numbers = self._known.get(name, (dictionary.slice(0, 0), np.empty(0, np.int32)))
        shared = min(len(known), len(dictionary))
        if not known.slice(0, shared).equals(dictionary.slice(0, shared)):
            shared, numbers = 0, numbers[:0]
        if shared < len(dictionary):
            fresh = dictionary.slice(shared)
            if fresh.null_count:
                raise ValueError(f"a string of column {name} is null")
            texts = fresh.to_pylist()
            if any(len(text) > MAX_TEXT for text in texts):
                raise ValueError(f"a string of column {name} is longer than {MAX_TEXT} characters")
            interner: Interner = getattr(self.strings, name)
            numbers = np.concatenate([numbers, np.fromiter(map(interner, texts), np.int32, len(texts))])
            self._known[name] = (dictionary, numbers)
        numbers = numbers[: len(dictionary)]
        return None if np.array_equal(numbers, np.arange(len(numbers))) else numbers


def _array(values: list[int], dtype: Any) -> pa.Array:
    return pa.array(np.asarray(values, dtype))


def _nullable(ids: list[int]) -> pa.Array:
    numbers = np.asarray(ids, np.int32)
    absent = numbers == NULL
    return pa.array(numbers, mask=absent) if absent.any() else pa.array(numbers)


def _lists(offsets: list[int], item: pa.StructType, fields: list[pa.Array]) -> pa.ListArray:
    structs = pa.StructArray.from_arrays(fields, fields=list(item))
    return pa.ListArray.from_arrays(_array(offsets, np.int32), structs)


def _strings(texts: list[str]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:  # a lone surrogate, as in the name of a file that is not UTF-8
        return pa.array([text.encode("utf-8", "backslashreplace").decode() for text in texts], pa.string())


def _numpy(array: pa.Array) -> Numbers:
    if array.null_count:
        raise ValueError("a value is null")
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _filled(array: pa.Array) -> Numbers:
    """Numbers of 32 bits, ``NULL`` where there is none."""
    if not array.null_count:
        return _numpy(array)
    valid, data = array.buffers()
    size, start = len(array), array.offset
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=start + size, bitorder="little")
    numbers = np.frombuffer(data, np.int32, size, offset=4 * start)
    return np.where(bits[start:], numbers, np.int32(NULL))


def _offsets(lists: pa.ListArray) -> Numbers:
    offsets = _numpy(lists.offsets)
    found: Numbers = offsets - offsets[0]
    return found


def _items(lists: pa.ListArray, name: str) -> pa.StructArray:
    items = lists.flatten()
    if items.null_count:
        raise ValueError(f"column {name} has nulls")
    for field in ("spec", "writers"):
        if name == "reads" or field == "spec":
            _no_nulls(items.field(field), f"{name}.{field}")
    return items


def _check_slots(reads: pa.ListArray, writes: pa.ListArray, slots: Numbers) -> None:
    """A write with a negative slot changed a read of its own event."""
    read_counts, write_counts = np.diff(_numpy(reads.offsets)), np.diff(_numpy(writes.offsets))
    if bool(np.any(~slots >= np.repeat(read_counts, write_counts))):
        raise ValueError("a write changed a read that its event does not have")


def _no_nulls(array: pa.Array, name: str) -> None:
    if array.null_count:
        raise ValueError(f"column {name} has nulls")


def _named(column: pa.DictionaryArray, names: tuple[str, ...]) -> Numbers:
    """The numbers of a column of names, whatever order its dictionary has."""
    numbers = np.array([names.index(name) for name in column.dictionary.to_pylist()], np.int8)
    return numbers[_numpy(column.indices)]
