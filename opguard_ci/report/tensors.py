"""How much the tensors of a divergence differ: one row each, and of the first ones where, by which bits, from what to
what. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opguard_ci.report.clean import clean
from opguard_ci.report.layout import Line, count, shorten, table

MAX_ROWS: Final = 12
MAX_CLOSE: Final = 2
"""So many tensors are shown in detail."""
MAX_FIRST: Final = 3
_MAX_BITS: Final = 4

Tensor = Mapping[str, Any]


def tensor_lines(tensors: Sequence[Tensor]) -> list[Line]:
    """The table of all tensors, then details."""
    if not tensors:
        return []
    rows = [["", "", "different", "max ulp", "median", "max abs"]]
    rows += [_row(tensor) for tensor in tensors[:MAX_ROWS]]
    if len(tensors) > MAX_ROWS:
        rows.append([f"… {len(tensors) - MAX_ROWS} more"])
    lines = table(rows, head=True)
    noted = [tensor for tensor in tensors[:MAX_ROWS] if tensor.get("note")]
    lines += table([[_name(tensor), clean(tensor["note"])] for tensor in noted])
    close = [tensor for tensor in tensors[:MAX_ROWS] if _whole(tensor.get("different"))]
    for tensor in close[:MAX_CLOSE]:
        lines += table([[_name(tensor), words] for words in _where(tensor) + _bits(tensor)][:3])
        lines += table(_values(tensor))
    return lines


def _row(tensor: Tensor) -> list[str]:
    different = "not compared"
    if tensor.get("different") is not None:
        different = f"{_value(tensor.get('different'))} of {_value(tensor.get('elements'))}"
    what = f"{clean(tensor.get('dtype') or '')}{_shape(tensor.get('shape'))}"
    if tensor.get("reference_shape") is not None or tensor.get("reference_dtype"):
        dtype = clean(tensor.get("reference_dtype") or tensor.get("dtype") or "")
        what = f"{dtype}{_shape(tensor.get('reference_shape', tensor.get('shape')))} -> {what}"
    numbers = [_value(tensor.get(key)) for key in ("max_ulp", "median_ulp", "max_abs")]
    return [_name(tensor), shorten(what, 40), different, *numbers]


def _where(tensor: Tensor) -> list[str]:
    region = tensor.get("region")
    if not isinstance(region, Mapping):
        return []
    shape = _list(tensor.get("shape"))
    axes = []
    for (low, high), size in zip(_pairs(region.get("box")), shape, strict=False):
        axes.append(":" if (low, high) == (0, size) else str(low) if high == low + 1 else f"{low}:{high}")
    if not axes:
        return []
    rows = f", in {_value(region.get('rows'))} of {_value(region.get('of_rows'))} rows" if len(axes) > 1 else ""
    relative = f"; relative difference up to {_value(tensor['max_rel'])}" if tensor.get("max_rel") is not None else ""
    place = "all over" if set(axes) == {":"} else f"inside [{', '.join(axes)}]"
    return [f"{place}{rows}{relative}"]


def _bits(tensor: Tensor) -> list[str]:
    flips = tensor.get("flips")
    if not isinstance(flips, Mapping):
        return []
    words = []
    bits = flips.get("bits")
    if isinstance(bits, Mapping) and len(bits) <= _MAX_BITS:
        words.append(", ".join(f"bit {clean(bit)} flipped in {_value(number)}" for bit, number in bits.items()))
    elif isinstance(fields := flips.get("fields"), Mapping):
        words.append(
            f"{', '.join(f'{clean(name)} bits in {_value(number)}' for name, number in fields.items() if number)}"
        )
    if single := _whole(flips.get("single_bit")):
        words.append(f"{count(single, 'element')} by a single bit")
    odd = tensor.get("nonfinite")
    for name, pair in odd.items() if isinstance(odd, Mapping) else ():
        if isinstance(pair, list) and any(pair):
            words.append(f"{clean(name)}: {' -> '.join(_value(number) for number in pair)}")
    return ["; ".join(words)] if words else []


def _values(tensor: Tensor) -> list[list[str]]:
    rows = []
    for item in _list(tensor.get("first"))[:MAX_FIRST]:
        if not isinstance(item, Mapping):
            continue
        bits = item.get("bits")
        shown = f"({' -> '.join(clean(side) for side in bits)})" if isinstance(bits, list) else ""
        values = f"{clean(item.get('reference'))} -> {clean(item.get('candidate'))}"
        rows.append([_shape(item.get("index")), values, shown])
    return rows


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _pairs(box: object) -> list[tuple[int, int]]:
    return [
        (pair[0], pair[1]) for pair in _list(box) if len(_list(pair)) == 2 and all(type(end) is int for end in pair)
    ]


def _name(tensor: Tensor) -> str:
    name = shorten(clean(tensor.get("name") or ""), 32)
    return f"{name}, written" if tensor.get("role") == "written" else name


def _shape(shape: object) -> str:
    return f"[{','.join(clean(size) for size in shape)}]" if isinstance(shape, list) else ""


def _whole(value: object) -> int:
    return value if type(value) is int else 0


def _value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}"
    if type(value) is int:
        return f"{value:,}" if abs(value) < 1_000_000 else f"{float(value):.3g}" if abs(value) < 1 << 64 else "many"
    return shorten(clean(value), 8)
