from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.errors import OpguardError
from opguard_ci.worker import wire

messages = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.lists(messages, max_size=4), st.lists(st.integers(1, 40), min_size=1))
def test_frames_are_put_together_however_they_are_cut(sent: list[object], cuts: list[int]) -> None:
    """Messages come out whole and in order, whatever pieces the stream arrives in."""
    stream = b"".join(wire.pack(message) for message in sent)
    frames, got, at, turn = wire.Frames(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        got += frames.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert got == sent


def test_a_frame_over_the_limit_is_refused() -> None:
    """A header that promises more than the limit is an error before any memory is taken."""
    with pytest.raises(OpguardError, match="over the limit"):
        wire.Frames().feed(b"\xff" * 8)


def test_a_request_carries_descriptors() -> None:
    """The other side gets descriptors of the same files, and no byte too many is read."""
    here, there = socket.socketpair()
    read, write = os.pipe()
    with here, there:
        wire.send_run(here, {"a": 1}, [write])
        wire.send(here, "next")
        assert there.recv(1) == wire.RUN
        message, (descriptor,) = wire.receive_run(there, 1)
        assert message == {"a": 1}
        assert wire.receive(there) == "next"
        os.write(descriptor, b"through")
    assert os.read(read, 10) == b"through"
    for number in (read, write, descriptor):
        os.close(number)


def test_the_end_of_a_connection_is_none() -> None:
    """A side that closes in the middle of a message is the same as one that says nothing."""
    here, there = socket.socketpair()
    with there:
        with here:
            here.sendall(wire.pack("cut")[:-1])
        assert wire.receive(there) is None


def test_nobody_listens(tmp_path: Path) -> None:
    """Neither a missing nor a dead socket is an error, and who listens later takes the name over."""
    path = tmp_path / "a.sock"
    assert wire.connect(path) is None
    wire.listen(path).close()
    assert wire.connect(path) is None
    with wire.listen(path):
        connection = wire.connect(path)
        assert connection is not None
        assert wire.peer(connection) == (os.getpid(), os.getuid())
        connection.close()
