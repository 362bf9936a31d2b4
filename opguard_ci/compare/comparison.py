"""The comparison of two traces by their events: what differs, where it comes from, what it means. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from .align import structure
from .allowances import Allowances
from .cause import Cause
from .contract import Difference, differences, first_failure
from .describe import describe_cause
from .draws import DrawChange, draws, same_draws
from .findings import findings_of
from .judge import Judge
from .manifests import Manifests, other_environments
from .traces import TraceLike, side_of
from .unnamed import is_unnamed
from .verdict import Verdict

_MAX_TRANSIENT: Final = 50


class Comparison(Manifests):
    """The comparison of two runs of one rank, or of one rank of two runs."""

    def __init__(self, reference: TraceLike, candidate: TraceLike, across_environments: bool) -> None:
        super().__init__(reference.manifest, candidate.manifest)
        self.across_environments = across_environments
        self.allowances = Allowances(reference, candidate)
        self.notes[:0] = self.allowances.notes
        self.judge = Judge(side_of(reference), side_of(candidate))
        self.judge.declared = self.allowances.names_operator

    def verdict(self) -> Verdict:
        """The verdict about the two."""
        base = {**self.identities(), "findings": self.findings()}
        step, found = self.first_difference()
        base["tolerance"] = self.allowances.tolerance_json()
        base["declared_unstable"] = self.allowances.unstable_json()
        if step is None:
            transient = self.transient(self.differing)
            kernels = [item for item in transient if item["cause"] == "kernel"]
            if kernels:
                either = "" if any("one_of" not in item for item in kernels) else ", or something wrote to its inputs"
                self.notes.append(
                    f"Warning: a kernel gave other bits for the same inputs{either}, though "
                    + ("what differs is within tolerance." if self.allowances.used else "no contract value differs.")
                )
            name = "equivalent" if self.differing else "identical"
            doubt = self.doubt()
            if doubt:
                self.notes.append(doubt)
                name = "untestable"
            return Verdict(name, transient=transient, structure=self.structure(), **base)
        first = self._explain(step, found)
        shown = {"contract": contract_json(step, found), "structure": self.structure(), **base}
        one_key = self.left["environment"].get("key") == self.right["environment"].get("key")
        if not one_key and not self.across_environments:
            self.notes.append(
                "Values and environments differ: run both sides on one machine to tell code from environment."
            )
            self.notes += other_environments(self.left["environment"], self.right["environment"])
            return Verdict("environment", **shown)
        return Verdict(
            "diverged",
            first_divergence=first,
            transient=self.transient([s for s in self.differing if s < step]),
            **shown,
        )

    def findings(self) -> list[dict[str, Any]]:
        """What the candidate shows by itself."""
        if not self.full:
            return []
        return findings_of(self.judge.candidate, self.right)

    # The contract

    def first_difference(self) -> tuple[int | None, list[Difference]]:
        """The first step in which values differ that fail the comparison, and these."""
        step, found, notes = first_failure(
            ((step, self._failing(step)) for step in self.steps), same_steps=self.common == self.steps
        )
        self.notes += notes
        return step, found

    def _failing(self, step: int) -> list[Difference]:
        """The values of a step that differ and fail the comparison."""
        hard = [d for d in self._differences(step) if d.hard] if step in self.differing else []
        hard = [d for d in hard if d.section != "rng" or not self._is_harmless(d, step)]
        hard = [d for d in hard if not self._was_cut(step, d) and not self._is_unnamed(step, d)]
        return [d for d in hard if not self.allowances.accepts(step, d) and not self._is_declared(step, d)]

    def _was_cut(self, step: int, difference: Difference) -> bool:
        """Whether a value is absent because its run was cut short in this step or before."""
        manifest = self.left if difference.reference is None else self.right if difference.candidate is None else None
        if manifest is None or manifest.get("complete", False):
            return False
        return step >= max((entry["step"] for entry in manifest["steps"]), default=step)

    def _is_unnamed(self, step: int, difference: Difference) -> bool:
        """Whether a value is absent only because one of the runs got to it by other means, which do not name it."""
        if not self.sees(step) or not is_unnamed(self.judge.pairs, difference):
            return False
        names, makes = ("reference", "candidate") if difference.candidate is None else ("candidate", "reference")
        note = f"{difference.name} is in the contract of the {names} only; the {makes} makes it by the same operators."
        if note not in self.notes:
            self.notes.append(note)
        return True

    def _is_declared(self, step: int, difference: Difference) -> bool:
        """Whether a value is declared unstable, or differs for an operator alone that is."""
        if not self.allowances.any_unstable:
            return False
        if self.allowances.leaves_out(step, difference):
            return True
        pattern = self.declared(difference) if self.sees(step) and difference.section != "rng" else None
        if pattern is not None:
            self.allowances.follows(step, difference, pattern)
        return pattern is not None

    def declared(self, difference: Difference) -> str | None:
        """The pattern of operators declared unstable for which alone values differ; None if there is none."""
        if not (self.full and self.allowances.any_unstable):
            return None
        return self.judge.unstable_behind(difference)

    def _differences(self, step: int) -> list[Difference]:
        left, right = self.judge.reference.view(step), self.judge.candidate.view(step)
        if np.array_equal(left.hashes.value, right.hashes.value):
            return []
        return differences(*(view.where(view.is_contract) for view in (left, right)))

    def _is_harmless(self, difference: Difference, step: int) -> bool:
        """A generator's state may differ if the same draws were made through other generator objects (rule 6)."""
        if not all(self.sees(before) for before in self.steps if before <= step):
            return False
        left, right = (draws(side.views(step)) for side in (self.judge.reference, self.judge.candidate))
        harmless = same_draws(left, right)
        if harmless:
            self.notes.append(
                f"Generator {difference.name} is in another state, but all draws up to step {step} were the same."
            )
        return harmless

    # Explaining

    def _explain(self, step: int, found: list[Difference]) -> dict[str, Any]:
        if self.full and not self.sees(step):
            self.notes.append(
                f"Step {step} lies outside of the steps in which operators were recorded: run both sides with "
                f"--from-step {step} --to-step {step} to see them."
            )
        cause = self.cause(step, found)
        if cause is None:
            return only_contract(step, found, self.judge)
        return describe_cause(self.judge.earlier_alike(cause), self.judge)

    def cause(self, step: int, found: list[Difference]) -> Cause | None:
        """The cause of contract values of a step that differ; None if no operator explains them."""
        if not self.sees(step):
            return None
        judge = self.judge
        plain = [d for d in found if d.section != "rng"]
        rng: DrawChange | None = None
        if len(plain) < len(found):
            rng = judge.draw_change(step)
            if rng is None and not plain:  # set to another state by no draw: the first draw from there
                rng = judge.draw_change(self.steps[-1])
        return judge.explain(plain, rng)

    def transient(self, steps: list[int], counts: Callable[[Cause], bool] = lambda _: True) -> list[dict[str, Any]]:
        """What differed in passing in some steps, as far as it counts."""
        found: list[Cause] = []
        num_more = 0
        for step in filter(self.sees, steps):
            room = _MAX_TRANSIENT - len(found)
            passing = self.judge.passing(step)
            found += [self.judge.of(*one) for one in passing[:room]]
            num_more += len(passing[room:])
        if num_more:
            self.notes.append(f"{num_more} more operators made values in passing that the other side does not have.")
        return [describe_cause(cause, self.judge) for cause in found if counts(cause)]

    def structure(self) -> dict[str, int]:
        """How many operators more and fewer, and elsewhere, in the steps that differ."""
        steps = (step for step in filter(self.sees, self.differing) if step in self.common)
        return total_structure(structure(self.judge.pairs.alignment(step)) for step in steps)


def total_structure(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """The counts of several steps or ranks together."""
    total = Counter(inserted=0, removed=0, moved=0)
    for part in parts:
        total.update(part)
    return dict(total)


def contract_json(step: int, found: list[Difference]) -> list[dict[str, Any]]:
    """The contract values that differ in a step, as objects."""
    return [{"step": step, "name": difference.name, "equal": False} for difference in found]


def only_contract(step: int, found: list[Difference], judge: Judge) -> dict[str, Any]:
    """Never answer nothing: the contract value that differs and its last writers."""
    first = found[0]
    writers = [
        None if event is None else max(side.writers(event.reads[0]), key=lambda e: e.index, default=event)
        for side, event in ((judge.reference, first.reference), (judge.candidate, first.candidate))
    ]
    name, event, like = "candidate", writers[1], writers[0]
    if event is None:
        name, event, like = "reference", writers[0], None
    assert event is not None
    if like is not None and like.op != event.op:
        like = None
    cause = "missing" if first.candidate is None else "state"
    detail = f"{first.name} differs and no recorded operator explains it"
    if None in writers:
        detail = f"{first.name} is in the contract of the {name} only"
    return describe_cause(Cause(cause, event, name, like, detail), judge, step=step)
