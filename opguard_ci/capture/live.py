"""Stops a run before one operator call, or where it raises, and hands the user's frames to a debugger (``--pdb``)."""

from __future__ import annotations

import pdb
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from .call import Call
from .keep import UNCOUNTED, Keeper, KeptEvent
from .provenance import is_user_file
from .steps import enough

if TYPE_CHECKING:
    from .session import Session

STOPPED: Final = "stopped"
"""The file that says that the debugger was reached."""


def go_live(session: Session, wanted: Mapping[str, Any]) -> None:
    """Have a session stop as a plan says: ``{"folder": …, "calls": [[lane, n], …], "live": {"op": …, "said": …}}``.

    ``said`` is printed before the user is asked; a call of another operator than ``op`` is not the one that is meant.
    Without calls it stops where the target raises.
    """
    session.keeper = _Stops(session, wanted)
    session.call_type = _LiveCall


class _Stops(Keeper):
    """Counts calls up to those at which a debugger stops."""

    def __init__(self, session: Session, wanted: Mapping[str, Any]) -> None:
        self._marker = Path(wanted["folder"], STOPPED)
        super().__init__(session, self._marker.parent, {(*place,) for place in wanted["calls"]}, [])
        self._op = wanted["live"]["op"]
        self._said = wanted["live"]["said"]
        self._stops_at_errors = not wanted["calls"]

    def saw_call(self, kept: KeptEvent | None) -> None:
        """A call ended."""
        self._num_calls[self._session.lane_number()] += 1

    def is_wanted(self, operator: str) -> bool:
        """Whether to stop before the call of this operator that starts now in this thread."""
        return operator == self._op and self.place_of_next() is not None

    def saw_error(self, error: BaseException) -> None:
        """Look at an error where it was raised, if nothing else was asked for."""
        if self._stops_at_errors:
            self.say(f"{type(error).__name__}: {error}")
            Debugger().look_at(error)

    def say(self, text: str) -> None:
        """Tell the user why the run stops here."""
        self._marker.touch()
        print(f"opguard: {self._said}\n{text}", file=sys.__stdout__)


class _LiveCall(Call):
    """A call before which a debugger stops if it is wanted."""

    __slots__ = ("_counts",)

    def before(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Also stop."""
        super().before(args, options)
        session, stops = self._session, self._session.keeper
        assert isinstance(stops, _Stops)
        self._counts = self.info.kind not in UNCOUNTED
        if not self._counts or not stops.is_wanted(self.info.name):
            return
        tensors = [
            f"  %{number} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            for number, tensor in enumerate(self._given.tensors)
        ]
        stops.say("\n".join([self.text, *tensors]))
        if not Debugger().stop(users_frame()):
            session.stopped = True
            session.end()
            raise enough()

    def after(self, result: Any) -> None:
        """Count the call."""
        super().after(result)
        if self._counts:
            assert self._session.keeper is not None
            self._session.keeper.saw_call(None)


class Debugger(pdb.Pdb):
    """A ``pdb`` that knows the user's frames alone: ours and torch's are neither shown nor stepped into.

    It talks on the process's own standard input and output, whatever the target or pytest have put in their place.
    """

    def __init__(self) -> None:
        default = (None, None)  # with streams that are named it would read lines without editing them
        stdin, stdout = default if sys.stdout is sys.__stdout__ else (sys.__stdin__, sys.__stdout__)
        super().__init__(stdin=stdin, stdout=stdout, skip=["opguard_ci.*", "torch.*"], nosigint=True)

    def get_stack(self, f: FrameType | None, t: Any) -> tuple[list[tuple[FrameType, int]], int]:
        """The frames to show, outermost first, and the number of the current one."""
        frames, _ = super().get_stack(f, t)
        shown = [each for each in frames if is_user_file(each[0].f_code.co_filename)] or frames
        return shown, len(shown) - 1

    def stop(self, frame: FrameType) -> bool:
        """Talk to the user at a frame; False if the run is to end."""
        self.reset()
        self.interaction(frame, None)
        if self.quitting:
            return False
        if self.stoplineno != -1 or self.breaks:  # a step, or breakpoints to come by
            each: FrameType | None = frame
            while each is not None:
                each.f_trace = self.trace_dispatch
                self.botframe = each
                each = each.f_back
            sys.settrace(self.trace_dispatch)
        return True

    def look_at(self, error: BaseException) -> None:
        """Talk to the user about an error that ended the run."""
        self.reset()
        self.interaction(None, error.__traceback__)


def users_frame() -> FrameType:
    """The innermost frame of the user's code; where there is none, the caller's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame if frame is not None else sys._getframe(1)
