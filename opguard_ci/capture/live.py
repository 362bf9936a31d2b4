"""Stops a run at one operator call and hands the user's frames to a debugger (``--pdb``)."""

from __future__ import annotations

import pdb
import sys
from types import FrameType
from typing import Any

from .provenance import is_user_file


class Debugger(pdb.Pdb):
    """A ``pdb`` that knows the user's frames alone: ours and torch's are neither shown nor stepped into."""

    def __init__(self) -> None:
        super().__init__(skip=["opguard_ci.*", "torch.*"], nosigint=True)

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


def users_frame() -> FrameType:
    """The innermost frame of the user's code; where there is none, the caller's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame if frame is not None else sys._getframe(1)
