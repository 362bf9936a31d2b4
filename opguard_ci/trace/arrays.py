"""The columns of a step as arrays, and single events of them as objects. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .model import KINDS, NULL, PHASES, Draw, Event, Read, StepTable, Strings, Write

Numbers = npt.NDArray[Any]

TYPES: Final = {
    **dict.fromkeys(("lane", "op", "module", "stack", "args", "key", "generator", "writers"), np.int32),
    **dict.fromkeys(("read_spec", "write_spec", "write_slot"), np.int32),
    **dict.fromkeys(("read_offsets", "write_offsets", "writer_offsets"), np.int32),
    **dict.fromkeys(("phase", "kind"), np.int8),
    **dict.fromkeys(("flags", "read_flags", "write_flags"), np.uint8),
    **dict.fromkeys(("state_before", "state_after", "read_value", "write_value"), np.uint64),
}
"""The type of each column."""


@dataclass(frozen=True, slots=True, eq=False)
class StepArrays:
    """The events of one step, column by column, as ``StepTable`` describes them; column types are in ``TYPES``."""

    step: int
    first: int
    strings: Strings
    lane: Numbers
    phase: Numbers
    kind: Numbers
    op: Numbers
    module: Numbers
    stack: Numbers
    args: Numbers
    key: Numbers
    flags: Numbers
    generator: Numbers
    state_before: Numbers
    state_after: Numbers
    read_offsets: Numbers
    read_value: Numbers
    read_spec: Numbers
    read_flags: Numbers
    writer_offsets: Numbers
    writers: Numbers
    write_offsets: Numbers
    write_value: Numbers
    write_spec: Numbers
    write_slot: Numbers
    write_flags: Numbers

    @classmethod
    def of(cls, table: StepTable) -> StepArrays:
        """The columns of a step as arrays."""
        columns = {name: np.array(getattr(table, name), kind) for name, kind in TYPES.items()}
        return cls(table.step, table.first, table.strings, **columns)

    def table(self) -> StepTable:
        """The same columns as lists."""
        return StepTable(self.step, self.first, self.strings, **{name: getattr(self, name).tolist() for name in TYPES})

    def __len__(self) -> int:
        return len(self.op)

    def event(self, row: int) -> Event:
        """Event number ``first + row`` as an object."""
        strings, generator = self.strings, int(self.generator[row])
        draw = None
        if generator != NULL:
            draw = Draw(generator, int(self.state_before[row]), int(self.state_after[row]))
        return Event(
            index=self.first + row,
            lane=int(self.lane[row]),
            step=self.step,
            phase=PHASES[self.phase[row]],
            kind=KINDS[self.kind[row]],
            op=strings.op.strings[self.op[row]],
            module=strings.module.get(self.module[row]),
            stack=strings.stack.get(self.stack[row]),
            args=strings.args.get(self.args[row]) or "",
            key=strings.key.get(self.key[row]),
            flags=int(self.flags[row]),
            reads=self._reads(row),
            writes=self._writes(row),
            draw=draw,
        )

    def _reads(self, row: int) -> tuple[Read, ...]:
        low, high = self.read_offsets[row], self.read_offsets[row + 1]
        if low == high:
            return ()
        offsets = self.writer_offsets[low : high + 1].tolist()
        start, specs = offsets[0], self.strings.spec.strings
        writers = self.writers[start : offsets[-1]].tolist()
        columns = (self.read_value, self.read_spec, self.read_flags)
        return tuple(
            Read(value, specs[spec], tuple(writers[offsets[n] - start : offsets[n + 1] - start]), flags)
            for n, (value, spec, flags) in enumerate(zip(*(c[low:high].tolist() for c in columns), strict=True))
        )

    def _writes(self, row: int) -> tuple[Write, ...]:
        low, high = self.write_offsets[row], self.write_offsets[row + 1]
        specs = self.strings.spec.strings
        columns = (self.write_value, self.write_spec, self.write_slot, self.write_flags)
        return tuple(
            Write(value, specs[spec], slot, flags)
            for value, spec, slot, flags in zip(*(c[low:high].tolist() for c in columns), strict=True)
        )
