"""Operands that a call names and does not read. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from ..trace.arrays import StepArrays
from ..trace.model import UNREAD
from .arguments import split_arguments

_OP: Final = "aten._fused_sgd_."
_LIST: Final = "momentum_buffer_list"
_NUMBER: Final = re.compile(r"%(\d+)")


def without_nominal_reads(step: StepArrays) -> StepArrays:
    """A step in which averages that fused SGD begins count as overwritten: what its first step is handed for them is
    memory that nobody wrote.
    """
    ops = [number for number, op in enumerate(step.strings.op.strings) if op.startswith(_OP)]
    rows = np.flatnonzero(np.isin(step.op, ops)) if ops else ()
    flags = step.read_flags.copy() if len(rows) else step.read_flags
    for row in rows:
        arguments = split_arguments(step.strings.args.get(int(step.args[row])) or "")
        if arguments.get("is_first_step") == "True":
            numbers = [int(number) for number in _NUMBER.findall(arguments[_LIST])]
            flags[step.read_offsets[row] + np.array(numbers, np.int64)] |= UNREAD
    return replace(step, read_flags=flags) if len(rows) else step
