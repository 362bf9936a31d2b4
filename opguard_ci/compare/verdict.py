"""Two traces in, one verdict out (DESIGN 9, verdict.md). Pure: reads the traces it is given and nothing else.

Equal digests decide by the manifests alone; what compares operators (``comparison``) is only loaded where they differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from ..errors import IncomparableError
from ..garbage import no_collections
from ..trace.model import SCHEMA

if TYPE_CHECKING:
    from .ranks import DistributedTrace
    from .traces import TraceLike

_COMPARED_FIELDS: Final = ("schema", "scheme", "ranks")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a comparison. ``to_json`` is the object that every face of the tool shows."""

    verdict: str
    reference: dict[str, Any] = field(default_factory=dict)
    candidate: dict[str, Any] = field(default_factory=dict)
    first_divergence: dict[str, Any] | None = None
    contract: list[dict[str, Any]] = field(default_factory=list)
    transient: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    structure: dict[str, int] = field(default_factory=lambda: {"inserted": 0, "removed": 0, "moved": 0})
    coverage: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tolerance: dict[str, Any] = field(default_factory=dict)
    """What the recipes allow and what differed within it (docs: evidence); empty where they allow nothing."""
    declared_unstable: dict[str, Any] = field(default_factory=dict)
    """What the recipes declare unstable and what was not judged for it; empty where they declare nothing."""

    @property
    def passed(self) -> bool:
        """Whether the two runs trained alike."""
        return self.verdict in ("identical", "equivalent")

    def to_json(self) -> dict[str, Any]:
        """The object of DESIGN 11."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "reference": self.reference,
            "candidate": self.candidate,
            "first_divergence": self.first_divergence,
            "contract": self.contract,
            "transient": self.transient,
            "findings": self.findings,
            "structure": self.structure,
            "coverage": self.coverage,
            "notes": self.notes,
            **({"tolerance": self.tolerance} if self.tolerance else {}),
            **({"declared_unstable": self.declared_unstable} if self.declared_unstable else {}),
        }


def nothing_compared(verdict: str, *notes: str) -> dict[str, Any]:
    """The object of a verdict for which no two runs were there to compare."""
    return {
        "schema": SCHEMA,
        "verdict": verdict,
        "reference": {"commit": None, "environment": None},
        "candidate": {"commit": None, "environment": None},
        "first_divergence": None,
        "contract": [],
        "transient": [],
        "findings": [],
        "structure": {"inserted": 0, "removed": 0, "moved": 0},
        "coverage": {},
        "notes": list(notes),
    }


def compare_traces(reference: TraceLike, candidate: TraceLike, *, across_environments: bool = False) -> Verdict:
    """Compare two traces by values.

    Values that differ where environments differ too make the verdict ``environment``; ``across_environments`` says that
    this is what is asked about: then they are ``diverged``, and the first divergence is named.

    Raises:
        IncomparableError: schema, fingerprint scheme, ranks or level differ, so that values cannot be compared.

    """
    from .manifests import Manifests

    _require_comparable(reference.manifest, candidate.manifest)
    manifests = Manifests(reference.manifest, candidate.manifest)
    if manifests.decide:
        return manifests.agreement()
    from .comparison import Comparison
    from .ranks import compare_ranks

    with no_collections():  # a comparison makes many objects, and no cycles
        if candidate.manifest.get("ranks", 1) == 1:
            return Comparison(reference, candidate, across_environments).verdict()
        return compare_ranks(
            cast("DistributedTrace", reference), cast("DistributedTrace", candidate), across_environments
        )


def _require_comparable(left: dict[str, Any], right: dict[str, Any]) -> None:
    for name in _COMPARED_FIELDS:
        mine, other = left.get(name), right.get(name)
        if mine != other:
            text = f"The two traces have different {name}: {mine!r} and {other!r}; record both alike."
            raise IncomparableError(f"other-{name}", text)
