"""Links between events that wait for values of a device, and are worked out in order when the values are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .fingerprint.cuda import Batch, DeviceFingerprints
from .schema import OpInfo

Work = tuple[Callable[[], None], OpInfo | None]


@dataclass(frozen=True, slots=True)
class _Part:
    """A step, or the first part of one."""

    step: int
    ends: bool
    works: list[Work]
    constants: list[tuple[int, list[int]]]
    batch: Batch


class Late:
    """What is still to be worked out. The session's lock guards it."""

    def __init__(
        self,
        devices: DeviceFingerprints,
        learn: Callable[[int, frozenset[int]], None],
        defect: Callable[[OpInfo, Exception], None],
    ) -> None:
        """``learn`` is told which values are those of constant tensors of a spec, ``defect`` where we failed."""
        self._devices, self._learn, self._defect = devices, learn, defect
        self._works: list[Work] = []
        self._constants: list[tuple[int, list[int]]] = []
        self._parts: deque[_Part] = deque()
        self._settled: list[int] = []

    def __len__(self) -> int:
        """How many pieces of work wait in the part that is being collected."""
        return len(self._works)

    def add(self, work: Callable[[], None], info: OpInfo | None) -> None:
        """Work something out later. ``info``: the operator that it is about."""
        self._works.append((work, info))

    def add_constants(self, spec: int, handles: list[int]) -> None:
        """The values of constant tensors of a spec, once they are there."""
        self._constants.append((spec, handles))

    def cut(self, step: int, ends: bool) -> None:
        """What was collected so far belongs to this step; have its values fetched. ``ends``: it is all of the step."""
        self._parts.append(_Part(step, ends, self._works, self._constants, self._devices.end_step()))
        self._works, self._constants = [], []

    def num_parts(self) -> int:
        """How many parts were cut off and not yet worked out."""
        return len(self._parts)

    def settle(self) -> tuple[int, bool]:
        """Wait for the values of the oldest part and work it out; its step, and whether that ends with it."""
        part = self._parts.popleft()
        numbers = part.batch.wait()
        values = self._devices.values
        for spec, handles in part.constants:
            self._learn(spec, frozenset(values.of_all(handles)))
        for work, info in part.works:
            try:
                work()
            except Exception as error:
                if info is None:
                    raise
                self._defect(info, error)
        for number in self._settled:  # a call may begin in one part and end in the next
            values.forget(number)
        self._settled = numbers
        return part.step, part.ends

    def discard(self) -> None:
        """Nothing of it will be asked for."""
        self._works, self._constants = [], []
        self._parts.clear()
