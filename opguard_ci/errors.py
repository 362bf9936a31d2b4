"""Every error that opguard_ci shows to a person.

    OpguardError                  exit 5: ours; a defect of opguard_ci
    ├── UsageError                exit 2: the request makes no sense as given
    ├── IncomparableError         exit 3: the two sides cannot be compared at all
    └── UntestableError           exit 4: the target could not be run to its end

The slug names the section of docs/errors.md; the message is one sentence that names the thing and says what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class OpguardError(Exception):
    """An error with a slug, a sentence for a person, and an exit code."""

    exit_code: ClassVar[int] = 5

    def __init__(self, slug: str, message: str) -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message

    def to_json(self) -> dict[str, object]:
        """The object that ``--json`` prints for this error."""
        return {"schema": 1, "verdict": "error", "error": {"slug": self.slug, "message": self.message}}


class UsageError(OpguardError):
    """The request cannot be carried out as given."""

    exit_code = 2


class IncomparableError(OpguardError):
    """The two sides differ in something that makes a comparison meaningless."""

    exit_code = 3


class UntestableError(OpguardError):
    """The target did not run to its end; ``traceback`` holds the user's own frames, if any."""

    exit_code = 4

    def __init__(self, slug: str, message: str, traceback: str = "") -> None:
        super().__init__(slug, message)
        self.traceback = traceback
