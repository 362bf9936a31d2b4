"""What a run of a commit may import, as plain data that a child process can read back."""

# Why: these are the strings of sys.path and __file__, compared by their text; pathlib would change their spelling.
# ruff: noqa: PTH100, PTH112, PTH118
from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opguard_ci.worker.tree import Checkout


@dataclass(frozen=True, slots=True)
class Borders:
    """The user's checkout, by every spelling, without the folders in it that are not the user's code.

    Those are the tree (where the cache lies in the checkout), the interpreter's environment, and what is allowed.
    """

    checkouts: tuple[str, ...]
    exempt: tuple[str, ...]

    def is_users(self, path: str) -> bool:
        """Whether an absolute path lies in the checkout and is not exempt."""
        if not any(path == checkout or _is_below(path, checkout) for checkout in self.checkouts):
            return False
        return not any(path == place or _is_below(path, place) for place in self.exempt)


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """Where a commit's code lies and what its bytes must be.

    ``tree``: the folder that holds the commit. ``files``: path below it -> blob id. ``roots``: folders below it from
    which modules are imported, in the order of sys.path ("" is the tree itself). ``checkout``: the user's working
    tree, which the run must leave alone. ``pinned``, ``built``, ``linked``: paths that are not the commit's own.
    ``allowed``: folders that the run may use although they lie in the checkout, such as its output.
    """

    tree: str
    files: Mapping[str, str]
    roots: tuple[str, ...] = ("", "src")
    checkout: str | None = None
    algorithm: str = "sha1"
    pinned: frozenset[str] = field(default=frozenset())
    built: frozenset[str] = field(default=frozenset())
    linked: frozenset[str] = field(default=frozenset())
    allowed: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, checkout: Checkout, *, user_root: Path, first_root: str = "", allowed: Iterable[str] = ()
    ) -> ImportPlan:
        """The plan for a checked out commit; ``first_root``: the target's folder below the tree, as sys.path[0]."""
        width = len(next(iter(checkout.files.values()), ""))
        return cls(
            tree=str(checkout.path),
            files=checkout.files,
            roots=tuple(dict.fromkeys((first_root, "", "src"))),
            checkout=str(user_root),
            algorithm="sha256" if width == 64 else "sha1",
            pinned=checkout.pinned,
            built=checkout.built,
            linked=checkout.linked,
            allowed=tuple(allowed),
        )

    def save(self, path: Path) -> None:
        """Write the plan to a file for `load` (paths that are not UTF-8 survive)."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain |= {"files": dict(self.files), "pinned": sorted(self.pinned), "built": sorted(self.built),
                  "linked": sorted(self.linked)}  # fmt: skip
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(plain), encoding="ascii")
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> ImportPlan:
        """The plan that `save` wrote."""
        plain = json.loads(path.read_bytes())
        for name in ("pinned", "built", "linked"):
            plain[name] = frozenset(plain[name])
        return cls(**{**plain, "roots": tuple(plain["roots"]), "allowed": tuple(plain["allowed"])})

    def folders(self) -> list[str]:
        """The import roots as absolute paths, whether they exist or not."""
        return [os.path.normpath(os.path.join(self.tree, root)) for root in self.roots]

    def borders(self) -> Borders:
        """What counts as the user's, as this process sees it."""
        if self.checkout is None:
            return Borders((), ())
        checkouts = tuple(dict.fromkeys((self.checkout, os.path.realpath(self.checkout))))
        places = (self.tree, sys.prefix, sys.exec_prefix, sys.base_prefix, *self.allowed)
        absolute = {spelled for place in places for spelled in (os.path.abspath(place), os.path.realpath(place))}
        return Borders(checkouts, tuple(sorted(p for p in absolute if any(_is_below(p, c) for c in checkouts))))

    def relocate(self, entries: Iterable[str]) -> list[str]:
        """A sys.path whose entries in the user's checkout lead to the same place in the tree, the roots in front."""
        moved, borders = [], self.borders()
        for entry in entries:
            place = os.path.abspath(entry)
            if borders.is_users(place):
                checkout = next(c for c in borders.checkouts if place == c or _is_below(place, c))
                entry = os.path.normpath(os.path.join(self.tree, os.path.relpath(place, checkout)))
            moved.append(entry)
        return list(dict.fromkeys([*(folder for folder in self.folders() if os.path.isdir(folder)), *moved]))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")
