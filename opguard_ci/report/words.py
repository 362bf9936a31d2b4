"""What verdicts and causes mean, in words. Pure."""

from __future__ import annotations

from typing import Final

VERDICTS: Final = {
    "identical": "every contract value and every operator is bit-equal in both runs",
    "equivalent": "every contract value is bit-equal in every step; operators or passing values differ",
    "diverged": "the candidate computes something else",
    "unstable": "the target does not repeat itself",
    "environment": "values and environments differ; no run on this machine can tell the two apart",
    "untestable": "the target could not be run to its end, or not be watched completely",
    "no-reference": "there is nothing to compare with yet",
    "ok": "captured",
    "findings": "captured, and the run itself does something that makes training numerics unsafe",
    "error": "the request could not be carried out",
}

CAUSES: Final = {
    "arguments": "The same operator was called on the same tensors with other arguments.",
    "kernel": "The same operator with the same arguments and the same input bits gave other output bits. One of: "
    "another kernel, other hardware, another thread count or memory alignment, a race, a global precision switch.",
    "random": "The draw started from another generator state, or another draw was made: a random operator was added, "
    "removed or moved before it, or the seed differs.",
    "data": "Values that come from outside the run (a file, a loader, Python) were different before any operator used "
    "them.",
    "state": "A parameter, buffer or optimizer state already held another value when the operator read it.",
    "inputs": "The operator was given another operand, or the same operands in another order; both values exist in "
    "both runs.",
    "code": "The runs execute other operators here, from the same input values.",
    "missing": "The reference executes operators here that the candidate does not.",
    "overwritten": "The bytes of an input changed although no recorded operator wrote them: memory that is still in "
    "use was written from outside (numpy, dlpack, another thread, a reused buffer).",
    "uninitialised": "The operator read memory that nothing had written since it was allocated: its values are what "
    "the allocator left there.",
    "hidden-mutation": "The operator changed an argument that its schema declares read-only.",
    "collective": "A collective gave other values: another reduction order, another algorithm, or another contribution "
    "from a rank.",
}
