"""Where steps begin and end, and the contract at each end (DESIGN 4).

Three rules, the first that applies: a recipe's yields; ``mark_step(i)`` at the start of step i; the return of the step
of the optimizer that stepped first.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import UntestableError
from .contract import Entry, Training, flatten, flatten_step, generator_states
from .last_seen import LastSeen
from .session import Session


class EnoughSteps(BaseException):
    """Ends the target after ``--steps`` steps. Not an Exception, so that training loops do not swallow it."""


def enough() -> BaseException:
    """What to raise to end the target; a thread ends by SystemExit without a word."""
    return EnoughSteps() if threading.current_thread() is threading.main_thread() else SystemExit()


class Steps:
    """Follows one run from step to step."""

    def __init__(self, session: Session, limit: int | None) -> None:
        self._session = session
        self._limit = limit
        self._rule = "optimizer"  # until the target shows that it goes by "yield" or "mark"
        self._training = Training()
        self._last_seen = LastSeen(session)
        self._ruler: weakref.ref[torch.optim.Optimizer] | None = None
        self._num_losses = 0
        self.num_optimizer_steps = 0
        self.num_steps = 0
        self.ended = False

    # What the hooks report

    def saw_module(self, module: torch.nn.Module) -> None:
        """A module was called from outside of any other."""
        self._training.saw_module(module)

    def saw_backward(self, tensors: list[Any]) -> None:
        """``backward()`` is called on these tensors."""
        if self._rule == "yield" or self._is_over:
            return
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                continue
            name = "loss" if self._num_losses == 0 else f"loss.{self._num_losses}"
            self._num_losses += 1
            self._session.contract.record([Entry("loss", name, tensor)])

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step begins."""
        if self._is_over:
            return
        self._training.saw_optimizer(optimizer)
        self._session.contract.record(self._training.gradients(optimizer))

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step ended, or was skipped by a GradScaler."""
        if self._is_over:
            self._end_again()
            return
        self.num_optimizer_steps += 1
        if self._rule == "yield":
            return
        self._last_seen.take(self._training.entries())
        if self._rule == "mark":
            return
        if self._ruler is None or self._ruler() is None:
            self._ruler = weakref.ref(optimizer)
        if self._ruler() is optimizer:
            self._end_step()
            if self.num_steps == self._limit:
                self.stop()
                raise enough()

    # What the target or its driver says

    def use_yields(self) -> None:
        """The target is a generator: one yield is one step."""
        if self._rule == "optimizer":
            self._rule = "yield"

    def use_marks(self) -> None:
        """The target will mark its steps: until it does, it is setting up."""
        if self._rule != "mark":
            self._rule = "mark"
            self._session.relabel_step(-1)

    def mark(self, step: int) -> None:
        """Step ``step`` begins now. Raises ``UntestableError`` if the steps do not count up from 0."""
        if self._is_over:
            self._end_again()
            return
        step = int(step)
        if self._rule != "mark":
            if self.num_steps:
                raise UntestableError(
                    "mark-too-late",
                    f"mark_step({step}) came after {self.num_steps} steps: call mark_step(0) before the first ends.",
                )
            self.use_marks()
        if step <= self._session.step:
            raise UntestableError(
                "mark-order", f"mark_step({step}) was called during step {self._session.step}: steps must count up."
            )
        if self._session.step < 0:
            self._session.contract.record(self._ending())
            self._session.end_step(step)
        else:
            self._end_step(step)
        if self._limit is not None and step >= self._limit:
            self.stop()
            raise enough()

    def stop(self) -> None:
        """Record no more: what the target does from now on belongs to no step."""
        self._session.stopped = True
        self._session.end()

    @property
    def _is_over(self) -> bool:
        return self.ended or self._session.over

    def _end_again(self) -> None:
        """A training loop that swallowed the end is told again."""
        if self._session.stopped:
            raise enough()

    def yielded(self, held: Any) -> None:
        """A recipe yielded: the step is over."""
        self._session.contract.record(flatten_step(held))
        if self._rule == "yield":
            self._session.contract.record(generator_states())
            self._advance(self._session.step + 1)

    def returned(self, held: Any) -> None:
        """The target is done and returned ``held``; the last step is closed."""
        if self._is_over:
            return
        self.ended = True
        if self._rule != "yield":
            if held is not None:
                self._session.contract.record(flatten("final", held, "final"))
            if self._rule == "mark" and self._session.step >= 0:
                self.num_steps += 1
            if self._last_seen.are_needed():
                self._last_seen.record()
                self._session.contract.record(generator_states())
            else:
                self._session.contract.record(self._ending())

    def _ending(self) -> Iterator[Entry]:
        yield from self._training.entries()
        yield from generator_states()

    def _end_step(self, following: int | None = None) -> None:
        self._session.contract.record(self._ending())
        self._advance(self._session.step + 1 if following is None else following)

    def _advance(self, following: int) -> None:
        self.num_steps += 1
        self._num_losses = 0
        self._session.modules.reset()
        self._session.end_step(following)
