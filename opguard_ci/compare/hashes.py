"""Hashes of what events are, for all events of a step at once: equal events of two runs have equal hashes. Pure.

They have 64 bits, as values have. Where an equal hash alone would decide, two different events would have to collide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from ..trace.arrays import StepArrays
from ..trace.model import HIDDEN, KINDS, NO_VALUE, NULL, UNREAD, Strings
from .values import base_name

Words = npt.NDArray[np.uint64]

_ODD: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT: Final = np.uint64(33)
_CONTRACT: Final = KINDS.index("contract")


def text_hash(text: str) -> int:
    """The hash of a string."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def base_hash(op: str) -> int:
    """The hash of what an operator computes, whatever its form."""
    return text_hash(base_name(op))


class Texts:
    """What is known of the strings of one run, as arrays by number; ``NULL`` stands for the empty string."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Callable[[str], int]], Words] = {}

    def of(self, strings: Strings, column: str, numbers: npt.NDArray[np.int32], of: Callable[[str], int]) -> Words:
        """What ``of`` says about the string of each number."""
        interner = getattr(strings, column)
        known = self._known.get((id(interner), of))
        if known is None or len(known) <= len(interner.strings):
            old = known[:-1] if known is not None else np.empty(0, np.uint64)
            texts = [*interner.strings[len(old) :], ""]  # the last one answers for NULL, which is -1
            known = np.concatenate([old, np.fromiter(map(of, texts), np.uint64, len(texts))])
            self._known[id(interner), of] = known
        found: Words = known[numbers]
        return found


@dataclass(slots=True, eq=False)
class Hashes:
    """The hashes of a step's events. Those that many rules ask for are kept; the others are made when asked for."""

    call: Words
    """Equal if ``call_key`` is."""
    full: Words
    """Equal if ``full_key`` is: call and result."""
    form: Words
    """Operator whatever its form, arguments, shapes of what it writes."""
    value: Words
    """Of the contract's events alone, in order: section, name and value."""
    step: StepArrays
    texts: Texts

    @property
    def result(self) -> Words:
        """Equal if the values are that were written openly."""
        return _result(self.step, *_open_writes(self.step))

    @property
    def base(self) -> Words:
        """Operator whatever its form."""
        return self.texts.of(self.step.strings, "op", self.step.op, base_hash)

    @property
    def place(self) -> Words:
        """Form and phase."""
        return _joined(self.form, self.step.phase.astype(np.uint64))


class Hasher:
    """Computes the hashes of the steps of one run."""

    def __init__(self) -> None:
        self.texts = Texts()

    def hashes(self, step: StepArrays) -> Hashes:
        """The hashes of a step's events."""
        strings, texts = step.strings, self.texts
        args = texts.of(strings, "args", step.args, text_hash)
        op = texts.of(strings, "op", step.op, text_hash)
        reads = np.where(step.read_flags & UNREAD, np.uint64(NO_VALUE), step.read_value)
        specs = texts.of(strings, "spec", step.read_spec, text_hash)
        read = _lists(step.read_offsets, reads, specs)

        open_, offsets = _open_writes(step)
        specs = texts.of(strings, "spec", step.write_spec[open_], text_hash)
        slots = step.write_slot[open_].astype(np.int64).view(np.uint64)
        drawn = np.where(step.generator == NULL, np.uint64(0), step.state_before)

        call = _joined(op, args, read, _lists(offsets, slots, specs), drawn)
        form = _joined(texts.of(strings, "op", step.op, base_hash), args, _lists(offsets, specs))
        promised = step.kind == _CONTRACT
        value = _joined(op[promised], args[promised], read[promised])
        return Hashes(call, _joined(call, _result(step, open_, offsets)), form, value, step, texts)


def _open_writes(step: StepArrays) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which writes are no hidden ones, and where each event's begin as if the hidden ones were not there."""
    open_ = (step.write_flags & HIDDEN) == 0
    kept = np.concatenate([np.zeros(1, np.int64), np.cumsum(open_)])
    return open_, kept[step.write_offsets]


def _result(step: StepArrays, open_: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64]) -> Words:
    return _lists(offsets, step.write_value[open_])


def are_among(values: Words, rising: Words) -> npt.NDArray[np.bool_]:
    """Which values occur in an array in rising order."""
    if not len(rising):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(rising.searchsorted(values), len(rising) - 1)
    found: npt.NDArray[np.bool_] = rising[places] == values
    return found


def _mix(words: Words) -> Words:
    words = (words ^ (words >> _SHIFT)) * _ODD[1]
    words = (words ^ (words >> _SHIFT)) * _ODD[2]
    return words ^ (words >> _SHIFT)


def _joined(*columns: Words) -> Words:
    """One word for each row of several columns."""
    found = columns[0]
    for column in columns[1:]:
        found = _mix(found * _ODD[0] + column)
    return found


def _lists(offsets: npt.NDArray[np.integer], *columns: Words) -> Words:
    """One word for each list of rows, in their order."""
    counts = np.diff(offsets)
    places = np.arange(len(columns[0])) - np.repeat(offsets[:-1], counts)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_joined(*columns, places.astype(np.uint64) + _ODD[0]))])
    return _mix(sums[offsets[1:]] - sums[offsets[:-1]] + counts.astype(np.uint64))
