"""Digests of a step: equal ones decide without looking at events. Pure.

All are 128 bits (XXH3) over numbers that two runs share: values, and hashes of strings instead of the order in which
a trace met them. The rules:

* ``operators``: per phase, per lane in order of lane numbers, every event but views and contract values: operator,
  arguments, reads (value, spec), writes (value, spec, slot), generator state before and after. Module, stack, flags,
  key and links are left out: a refactoring may move an operator without changing the numbers.
* ``data``: what came in from outside, each value once, in order: tensors that operators read from memory that no
  recorded operator wrote and that is not state, and what operators of the phase ``data`` wrote.
* One digest per section of the contract, over its (name, spec, value), sorted.
* ``contract``: over the (section, value) of what fails a comparison, whatever it is called.

A distributed run has these per rank, and over all ranks each digest of its ranks' digests, in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from opguard_ci.trace.model import KINDS, NO_VALUE, NULL, OUTSIDE, PHASES, STATE, Interner, StepTable

SECTIONS: Final = {
    "loss": "loss",
    "gradient": "gradients",
    "parameter": "parameters",
    "buffer": "buffers",
    "optimizer": "optimizer",
    "rng": "rng",
    "value": "values",
    "final": "final",
}
"""Key of a contract section's digest, by the ``op`` of its events."""

_VIEW: Final = KINDS.index("view")
_CONTRACT: Final = KINDS.index("contract")
_DATA: Final = PHASES.index("data")

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def step_digests(table: StepTable) -> dict[str, Any]:
    """The digests of a step, 32 hex digits each; what the step has nothing of is absent."""
    columns = _Columns(table)
    digests: dict[str, Any] = {}
    data = columns.data()
    if len(data):
        digests["data"] = _hex(data.tobytes())
    digests.update(columns.sections())
    values = columns.contract_values()
    if len(values):
        digests["contract"] = _hex(values.tobytes())
    digests["operators"] = columns.operators()
    return digests


def combined_digests(by_rank: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """The digests of one step of all ranks, in order; None for a rank that has no such step."""
    names = sorted({name for digests in by_rank for name in digests or ()})
    return {name: _together([(digests or {}).get(name) for digests in by_rank]) for name in names}


def _together(digests: Sequence[Any]) -> Any:
    if any(isinstance(digest, Mapping) for digest in digests):
        return combined_digests(digests)
    return _hex(" ".join(digest or "-" for digest in digests).encode())


class _Columns:
    """The columns of a step as arrays of 64-bit words, strings by their hash."""

    __slots__ = ("calls", "contract", "events", "kind", "lane", "phase", "reads", "table", "writes")

    def __init__(self, table: StepTable) -> None:
        strings = table.strings
        self.table = table
        self.kind = _array(table.kind)
        self.lane = _array(table.lane)
        self.phase = _array(table.phase)
        self.contract = self.kind == _CONTRACT
        self.calls = ~self.contract & (self.kind != _VIEW)
        self.reads = _Lists(table.read_offsets, table.read_value, _hashed(table.read_spec, strings.spec))
        self.writes = _Lists(table.write_offsets, table.write_value, _hashed(table.write_spec, strings.spec))
        self.writes.add(_array(table.write_slot).view(np.uint64))
        drawn = _array(table.generator) != NULL
        self.events: Words = np.stack(
            [
                _hashed(table.op, strings.op),
                _hashed(table.args, strings.args),
                self.reads.counts.view(np.uint64),
                self.writes.counts.view(np.uint64),
                drawn.astype(np.uint64),
                np.where(drawn, _words(table.state_before), np.uint64(0)),
                np.where(drawn, _words(table.state_after), np.uint64(0)),
            ],
            axis=1,
        )

    def data(self) -> Words:
        """Values from outside, in order of lanes and events, each once."""
        outside = (_array(self.table.read_flags) & (OUTSIDE | STATE)) == OUTSIDE
        read = outside & self.reads.of(self.calls)
        written = self.writes.of(self.calls & (self.phase == _DATA))
        values = np.concatenate([self.reads.words[read, 0], self.writes.words[written, 0]])
        rows = np.concatenate([self.reads.rows[read], self.writes.rows[written]])
        # Stable: an event's reads stay before its writes.
        values = values[np.lexsort((rows, self.lane[rows]))]
        values = values[values != NO_VALUE]
        _, first = np.unique(values, return_index=True)
        distinct: Words = values[np.sort(first)]
        return distinct

    def sections(self) -> dict[str, str]:
        """The digests of the contract's sections."""
        entries = self.reads.of(self.contract)
        if not entries.any():
            return {}
        rows = self.reads.rows[entries]
        # Sorted by the names' hashes: any order will do that two runs share.
        words = np.concatenate([self.events[rows, 1:2], self.reads.words[entries][:, ::-1]], axis=1)
        section = _array(self.table.op)[rows]
        names = self.table.strings.op.strings
        digests: dict[str, str] = {}
        for number in np.unique(section).tolist():
            mine = words[section == number]
            mine = mine[np.lexsort((mine[:, 2], mine[:, 1], mine[:, 0]))]
            digests[SECTIONS.get(names[number], names[number])] = _hex(mine.tobytes())
        return dict(sorted(digests.items()))

    def contract_values(self) -> Words:
        """(section, value) of what fails a comparison, sorted: other words mean that no renaming explains them.

        Gradients are left out because they do not fail by themselves, generator states because the same draws may be
        made through another generator.
        """
        names = self.table.strings.op
        soft = [names.ids.get(name, NULL) for name in ("gradient", "rng")]
        entries = self.reads.of(self.contract & ~np.isin(_array(self.table.op), soft))
        rows = self.reads.rows[entries]
        words: Words = np.stack([self.events[rows, 0], self.reads.words[entries, 0]], axis=1)
        return words[np.lexsort((words[:, 1], words[:, 0]))]

    def operators(self) -> dict[str, str]:
        """The digest of each phase's operator stream."""
        digests: dict[str, str] = {}
        for phase, name in enumerate(PHASES):
            chosen = self.calls & (self.phase == phase)
            if chosen.any():
                lanes = np.unique(self.lane[chosen])
                digests[name] = _hex(b"".join(self._stream(chosen & (self.lane == lane)) for lane in lanes))
        return digests

    def _stream(self, chosen: Mask) -> bytes:
        """The digest of some events; each event's counts say which reads and writes are its own."""
        parts = (
            self.events[chosen],
            self.reads.words[self.reads.of(chosen)],
            self.writes.words[self.writes.of(chosen)],
        )
        return xxhash.xxh3_128_digest(b"".join(part.tobytes() for part in parts))


class _Lists:
    """Reads or writes of all events: (value, spec, …) as words, and the event that each belongs to."""

    __slots__ = ("counts", "rows", "words")

    def __init__(self, offsets: list[int], values: list[int], specs: Words) -> None:
        self.counts = np.diff(_array(offsets))
        self.rows = np.repeat(np.arange(len(self.counts)), self.counts)
        self.words: Words = np.stack([_words(values), specs], axis=1)

    def add(self, column: Words) -> None:
        self.words = np.concatenate([self.words, column[:, None]], axis=1)

    def of(self, events: Mask) -> Mask:
        """Which entries belong to the chosen events."""
        return events[self.rows]


def _array(values: list[int]) -> Integers:
    return np.asarray(values, np.int64)


def _words(values: list[int]) -> Words:
    return np.asarray(values, np.uint64)


def _hashed(ids: list[int], interner: Interner) -> Words:
    """The hash of each string, which does not depend on its number; 0 for none."""
    return interner.hashes(_hash)[_array(ids)]


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def _hex(data: bytes) -> str:
    return str(xxhash.xxh3_128_hexdigest(data))
