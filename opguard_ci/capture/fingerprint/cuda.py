"""Fingerprints of device tensors, without ever waiting for the device inside a step.

A tensor is reduced where it lies: by a kernel on the stream that the operator ran on, started at once, so that nothing
is kept alive and the allocator reuses memory as in a bare run (docs/decisions/020-fingerprints-on-the-device.md). What
comes back is a handle (see ``pages``). ``end_step`` has the sums copied to the host, and the values are there as soon
as the device has got so far.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final

import numpy as np
import torch

from . import mix64
from .backends import Backend, TorchBackend, TritonBackend, address_of
from .pages import PAGE, Page, Values
from .quiet import Unhashable, quiet

MANY: Final = 1 << 24
"""Tensors of one call up to so many bytes share a launch."""

_NOTHING: Final = nullcontext()


class _Device:
    """The pages of one device. ``launcher``: starts kernels without Python, if it can (see ``native``)."""

    def __init__(self, device: torch.device, backend: Backend, launcher: Any = None) -> None:
        self.device, self.backend = device, backend
        self._launcher = launcher
        self._num_taught = 0
        self.used: list[Page] = []
        self.free: list[Page] = []
        self._index = device.index
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def stream(self) -> int:
        """The stream on which operators of this thread run now."""
        if self._side is None:
            return 0
        if torch._C._cuda_isCurrentStreamCapturing():
            raise Unhashable("being recorded into a CUDA graph")  # we would be replayed with it
        return torch._C._cuda_getCurrentRawStream(self._index)

    def is_current(self) -> bool:
        """Whether kernels of this thread are launched on this device."""
        return self._side is None or torch._C._cuda_getDevice() == self._index

    def take(self, count: int, values: Values) -> Page:
        """The page in use, with at least ``count`` slots left; a new one if need be."""
        if self._num_taught and self._num_taught != self.backend.num_kernels():
            self.backend.teach(self._launcher, self._index)
            self._num_taught = self.backend.num_kernels()
        if self.used and len(self.used[-1]) + count <= PAGE:
            return self.used[-1]
        page = self.free.pop() if self.free else self._make()
        page.begin(values.next_number())
        self.used.append(page)
        if self._num_taught:
            self._launcher.begin(self._index, page)
        return page

    def take_used(self) -> list[Page]:
        """The pages of the step, which ends."""
        if self._num_taught:
            self._launcher.end(self._index)
        used, self.used = self.used, []
        return used

    def _make(self) -> Page:
        if self._side is None:
            return Page(self.device)
        # On a stream of its own, so that waiting for the zeros is not waiting for the step.
        with quiet(), torch.cuda.stream(self._side):
            page = Page(self.device)
            if self._launcher is not None and not self._num_taught:
                self._teach(page)
            self._wait()
        return page

    @staticmethod
    def _wait() -> None:
        """Wait for the current stream, by an event: torch may have been told to warn of all other ways, or to raise."""
        event = torch.cuda.Event()
        event.record()
        event.synchronize()

    def _teach(self, page: Page) -> None:
        """Teach the launcher the kernels, and do without it if it adds up anything else than the backend does."""
        launcher, index, backend = self._launcher, self._index, self.backend
        backend.teach(launcher, index)
        square = torch.arange(128 * 128, device=self.device).view(128, 128)  # more than one program of each kernel
        calls = [square], [square, square], [square.t()]
        launcher.begin(index, page)
        handles = [handle for call in calls for handle in launcher.queue(call)]
        launcher.end(index)
        stream, count = self.stream(), len(page)
        for row, data in enumerate(data for call in calls for data in call):
            backend.one(stream, data, page, count + row)
        page.host.copy_(page.slots, non_blocking=True)
        page.slots.zero_()
        self._wait()
        sums = page.host[: 2 * count].tolist()
        if count == len(handles) and all(handles) and sums[:count] == sums[count:]:
            self._num_taught = backend.num_kernels()
        else:
            self._launcher = None


class DeviceFingerprints:
    """Fingerprints of the tensors of all devices of a process. May be called from any thread.

    ``fallback`` is told in a sentence when Triton cannot be used. ``compiled``: the module whose launcher starts
    kernels at a fraction of the time (see ``native``).
    """

    def __init__(self, fallback: Callable[[str], None], compiled: Any = None) -> None:
        self.values = Values()
        self._fallback, self._compiled = fallback, compiled
        self.launcher: Any = None
        """Whom the compiled recorder asks first; what it does not take comes here."""
        self.used = False
        """Whether there ever was a device tensor."""
        self._devices: dict[int, _Device] = {}
        self._texts: list[tuple[int, list[str | int]]] = []
        self._lock = threading.Lock()

    def queue(self, tensor: torch.Tensor) -> int:
        """Begin to fingerprint a strided tensor; its handle, or its value if that is known without a look."""
        nbytes = tensor.nbytes
        if not nbytes:
            return mix64.finish_one(0, 0, tensor.dtype)
        device = self._devices.get(tensor.get_device()) or self._open(tensor)
        stream = device.stream()
        with self._lock:
            page = device.take(1, self.values)
            row = page.add([nbytes], [tensor.dtype], stream)
        if device.is_current():
            device.backend.one(stream, tensor, page, row)
        else:
            with torch.cuda.device(device.device):
                device.backend.one(stream, tensor, page, row)
        return page.handle(row)

    def queue_all(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Begin to fingerprint the tensors of one call; small ones of a device share a launch."""
        if self.launcher is not None:
            handles: list[int] = self.launcher.queue(list(tensors))
            left = [number for number, handle in enumerate(handles) if not handle]
            for number, handle in zip(left, self._queue_all([tensors[number] for number in left]), strict=True):
                handles[number] = handle
            return handles
        return self._queue_all(tensors)

    def _queue_all(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        if len(tensors) < 2:
            return [self.queue(tensor) for tensor in tensors]
        index = tensors[0].get_device()
        small = [
            0 < tensor.nbytes <= MANY
            and tensor.is_contiguous()
            and tensor.get_device() == index
            and not address_of(tensor) % mix64.WORD
            for tensor in tensors
        ]
        together = [tensor for tensor, is_small in zip(tensors, small, strict=True) if is_small]
        handles: list[int] = []
        for first in range(0, len(together), PAGE):
            handles += self._queue_together(together[first : first + PAGE])
        if len(together) == len(tensors):
            return handles
        found = iter(handles)
        return [
            next(found) if is_small else self.queue(tensor) for tensor, is_small in zip(tensors, small, strict=True)
        ]

    def _queue_together(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        if len(tensors) == 1:
            return [self.queue(tensors[0])]
        device = self._devices.get(tensors[0].get_device()) or self._open(tensors[0])
        stream = device.stream()
        sizes = [tensor.nbytes for tensor in tensors]
        with self._lock:
            page = device.take(len(tensors), self.values)
            row = page.add(sizes, [tensor.dtype for tensor in tensors], stream)
        if device.is_current():
            device.backend.many(stream, tensors, sizes, page, row)
        else:
            with torch.cuda.device(device.device):
                device.backend.many(stream, tensors, sizes, page, row)
        first = page.handle(row)
        return [*range(first, first - len(tensors), -1)]

    def queue_constant(self, pattern: bytes, like: torch.Tensor) -> int:
        """Begin to compute the value of a tensor like this one with the element ``pattern`` everywhere."""
        nbytes, dtype = like.nbytes, like.dtype
        device = self._devices.get(like.get_device()) or self._open(like)
        stream = device.stream()
        with self._lock:
            page = device.take(1, self.values)
            row = page.add([nbytes], [dtype], stream)
        word = int.from_bytes(pattern * (mix64.WORD // len(pattern)), "little")
        with torch.cuda.device(device.device) if not device.is_current() else _NOTHING:
            device.backend.constant(stream, word, nbytes, page, row)
        return page.handle(row)

    def queue_text(self, pieces: list[str | int]) -> int:
        """The value of a text with values in it; a handle if one of them is."""
        if not any(isinstance(piece, int) and piece < 0 for piece in pieces):
            return self.values.of_text(pieces)
        number = self.values.next_number()
        with self._lock:
            self._texts.append((number, pieces))
        return ~(number * PAGE)

    def end_step(self) -> Batch:
        """Have the sums of this step copied to the host. Does not wait."""
        with quiet(), self._lock:
            batch = Batch(self.values, self._texts)
            self._texts = []
            for device in self._devices.values():
                used = device.take_used()
                if used:
                    batch.copy(device, used)
        return batch

    def _open(self, tensor: torch.Tensor) -> _Device:
        index, device = tensor.get_device(), tensor.device
        with self._lock:
            if index not in self._devices:
                with torch.cuda.device(device) if device.type == "cuda" else _NOTHING:
                    self._devices[index] = _Device(device, self._backend(device), self._launcher_for(device))
                    self.used = True
            return self._devices[index]

    def _launcher_for(self, device: torch.device) -> Any:
        if self.launcher is None and self._compiled is not None and device.type == "cuda":
            with suppress(RuntimeError):  # no driver where it looks for one
                self.launcher = self._compiled.Launcher()
        return self.launcher if device.type == "cuda" else None

    def _backend(self, device: torch.device) -> Backend:
        if device.type != "cuda":
            return TorchBackend()
        try:
            return TritonBackend()
        except Exception as error:  # whatever a compiler can run into
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            self._fallback(f"Device tensors are fingerprinted by torch's own operators, slowly: no Triton ({reason}).")
            return TorchBackend()


class Batch:
    """The fingerprints of one step, on their way to the host."""

    def __init__(self, values: Values, texts: list[tuple[int, list[str | int]]]) -> None:
        self._values, self._texts = values, texts
        self._copies: list[tuple[_Device, list[Page], torch.cuda.Event | None]] = []

    def copy(self, device: _Device, pages: list[Page]) -> None:
        """Queue the copies of a device's pages behind everything that adds to them."""
        if device.device.type != "cuda":
            self._move(pages)
            self._copies.append((device, pages, None))
            return
        with torch.cuda.device(device.device):
            current = torch.cuda.current_stream()
            for raw in set().union(*(page.streams for page in pages)) - {current.cuda_stream}:
                other = torch.cuda.ExternalStream(raw, device.device) if raw else torch.cuda.default_stream()
                current.wait_stream(other)
            self._move(pages)
            event = torch.cuda.Event()
            event.record(current)
        self._copies.append((device, pages, event))

    @staticmethod
    def _move(pages: list[Page]) -> None:
        for page in pages:
            count = len(page)
            page.host[:count].copy_(page.slots[:count], non_blocking=True)
            page.slots[:count].zero_()

    def wait(self) -> list[int]:
        """Wait for the copies and learn the values; the numbers of the pages that they came from."""
        numbers = []
        for device, pages, event in self._copies:
            if event is not None:
                event.synchronize()
            for page in pages:
                self._values.learn(page.number, page.values())
                numbers.append(page.number)
            device.free += pages
        self._copies = []
        for number, pieces in self._texts:
            self._values.learn(number, np.array([self._values.of_text(pieces)], np.uint64))
            numbers.append(number)
        return numbers
