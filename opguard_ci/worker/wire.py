"""Messages between client, server and warden: JSON in length-prefixed frames, file descriptors beside the first."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from opguard_ci.errors import OpguardError

RUN: Final = b"r"
"""First byte of a connection: a request for a run follows, with the descriptors of stdout and stderr."""
INFO: Final = b"i"
"""First byte of a connection: the server describes itself."""
STOP: Final = b"q"
"""First byte of a connection: the server ends, and its runs with it."""

_HEADER: Final = struct.Struct("<Q")
_LIMIT: Final = 256 << 20


def pack(message: Any) -> bytes:
    """A message as one frame."""
    body = json.dumps(message).encode()
    return _HEADER.pack(len(body)) + body


class Frames:
    """Puts the frames of a byte stream together, however it is cut."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are complete after these bytes."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > _LIMIT:
                raise OpguardError(
                    "wire", f"A message of {length} bytes between the processes of a run is over the limit."
                )
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(json.loads(bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return messages


def send(connection: socket.socket, message: Any) -> None:
    """Sends one message, however long the other side takes."""
    connection.sendall(pack(message))


def receive(connection: socket.socket) -> Any | None:
    """The next message; None when the other side has closed. Reads no byte beyond it."""
    header = _exactly(connection, _HEADER.size)
    if header is None:
        return None
    (length,) = _HEADER.unpack(header)
    if length > _LIMIT:
        raise OpguardError("wire", f"A message of {length} bytes between the processes of a run is over the limit.")
    body = _exactly(connection, length)
    return None if body is None else json.loads(body)


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


def send_run(connection: socket.socket, message: Any, descriptors: list[int]) -> None:
    """Asks for a run: the kind byte, the descriptors, the request."""
    connection.sendall(RUN)
    socket.send_fds(connection, [b"f"], descriptors)
    send(connection, message)


def receive_run(connection: socket.socket, count: int) -> tuple[Any, list[int]]:
    """The request and the descriptors of ``send_run``, its kind byte already read."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, count)
    message = receive(connection)
    if message is None or len(descriptors) != count:
        for descriptor in descriptors:
            os.close(descriptor)
        raise EOFError("the client closed the connection before its request was complete")
    return message, descriptors


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """A name for a socket that fits the 108 bytes of a Unix address, however deep its folder lies."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket | None:
    """A connection to the server that listens at ``path``; None if none does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(path) as address:
            connection.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def listen(path: Path) -> socket.socket:
    """Listens at ``path`` in place of whoever did before; other users cannot connect."""
    draft = path.with_name(f"{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _address(draft) as address:
        listener.bind(address)
    draft.chmod(0o600)
    listener.listen(64)
    draft.rename(path)
    return listener


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process id and user id of the other side."""
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user
