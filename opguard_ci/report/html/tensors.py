"""How much the tensors of a divergence differ: numbers, a map of where, the bits, the first values. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Final

from opguard_ci.report.html.build import Html, el, number, section

MAX_TENSORS: Final = 12
MAX_MAPS: Final = 6
_SHADES: Final = 8
_CELL: Final = 10
_FIELDS: Final = {"float64": (52, 11), "float32": (23, 8), "bfloat16": (7, 8), "float16": (10, 5)}
"""Bits of mantissa and exponent."""
_MAX_BITS: Final = 64
_BAR: Final = 48

Tensor = Mapping[str, Any]


def tensors(found: Sequence[Tensor]) -> Html | None:
    """A card for each tensor; the ones that differ first."""
    known = [tensor for tensor in found if isinstance(tensor, Mapping)]
    if not known:
        return None
    differing = [tensor for tensor in known if tensor.get("different") != 0]
    equal = [tensor for tensor in known if tensor.get("different") == 0]
    cards = [_card(tensor, detailed=n < MAX_MAPS) for n, tensor in enumerate(differing[:MAX_TENSORS])]
    rest = len(differing) - MAX_TENSORS
    if rest > 0:
        cards.append(el("p", f"… and {rest} more tensors that differ", class_="dim"))
    if equal:
        names = ", ".join(str(tensor.get("name")) for tensor in equal[:MAX_TENSORS])
        cards.append(el("p", "Bit-equal in both runs: ", el("b", names), class_="dim"))
    return section("How much", cards)


def _card(tensor: Tensor, *, detailed: bool) -> Html:
    what = f"{tensor.get('dtype')}{_shape(tensor.get('shape'))}"
    if tensor.get("reference_shape") is not None or tensor.get("reference_dtype"):
        before = tensor.get("reference_dtype") or tensor.get("dtype")
        what = f"{before}{_shape(tensor.get('reference_shape', tensor.get('shape')))} → {what}"
    head = el(
        "h3", str(tensor.get("name")), el("span", what, class_="dim"), el("span", tensor.get("role"), class_="tag")
    )
    parts: list[Html | None] = [head, _tiles(tensor)]
    if tensor.get("note"):
        parts.append(el("p", str(tensor["note"]), class_="dim"))
    if detailed:
        parts.append(el("div", _map(tensor), _bits(tensor), class_="pictures"))
        parts.append(_first(tensor))
    return el("article", parts, class_="card")


def _shape(shape: object) -> str:
    return f"[{', '.join(str(size) for size in shape)}]" if isinstance(shape, list) else ""


def _tiles(tensor: Tensor) -> Html:
    different, elements = tensor.get("different"), tensor.get("elements")
    share = None
    if type(different) is int and type(elements) is int and elements:
        share = f"{100 * different / elements:.3g} %"
    tiles = [
        ("differ", "not compared" if different is None else number(different), f"of {number(elements)}"),
        ("share", share, None),
        ("max ULP", tensor.get("max_ulp"), _also("median", tensor.get("median_ulp"))),
        ("max abs", tensor.get("max_abs"), _also("relative", tensor.get("max_rel"))),
    ]
    odd = tensor.get("nonfinite")
    for name, pair in odd.items() if isinstance(odd, Mapping) else ():
        if isinstance(pair, list) and len(pair) == 2:
            tiles.append((str(name), f"{number(pair[0])} → {number(pair[1])}", None))
    shown = [(name, value, more) for name, value, more in tiles if value is not None]
    return el("dl", [_tile(*tile) for tile in shown], class_="tiles")


def _also(name: str, value: object) -> str | None:
    return None if value is None else f"{name} {number(value)}"


def _tile(name: str, value: object, more: str | None) -> Html:
    shown = value if isinstance(value, str) else number(value)
    return el("div", el("dt", name), el("dd", shown, el("small", more) if more else None))


# Where


def _map(tensor: Tensor) -> Html | None:
    """The grid of ``map``: the darker a cell, the larger the share of its elements that differ."""
    found = tensor.get("map")
    cells = found.get("cells") if isinstance(found, Mapping) else None
    if not isinstance(cells, list) or not cells or not all(isinstance(row, list) and row for row in cells):
        return None
    assert isinstance(found, Mapping)
    rows, columns = len(cells), max(len(row) for row in cells)
    heights, widths = _sizes(found.get("rows"), rows), _sizes(found.get("columns"), columns)
    shares = [
        [value / (height * widths[n]) for n, value in enumerate(row)]
        for row, height in zip(cells, heights, strict=True)
    ]
    most = max(map(max, shares)) or 1
    drawn = [
        el("rect", x=start * _CELL, y=n * _CELL, width=length * _CELL, height=_CELL, class_=f"s{shade}")
        for n, row in enumerate(shares)
        for start, length, shade in _runs([math.ceil(_SHADES * share / most) for share in row])
    ]
    label = f"{number(found.get('rows'))} rows × {number(found.get('columns'))} columns"
    picture = el(
        "svg", drawn, viewBox=f"0 0 {columns * _CELL} {rows * _CELL}", role="img", class_="map",
        preserveAspectRatio="none", style=f"height:{min(150, max(24, 9 * rows))}px",
        aria_label=f"Where the elements differ: {label}",
    )  # fmt: skip
    return el("figure", picture, el("figcaption", "Where: ", label, _box(tensor), "; darker: more of them differ"))


def _sizes(number: object, cells: int) -> list[int]:
    """How many of so many rows or columns each cell stands for."""
    total = number if type(number) is int and number >= cells else cells
    edges = [-(-n * total // cells) for n in range(cells + 1)]
    return [high - low for low, high in pairwise(edges)]


def _runs(shades: Sequence[int]) -> list[tuple[int, int, int]]:
    found, start = [], 0
    for shade, run in groupby(shades):
        length = sum(1 for _ in run)
        found.append((start, length, shade))
        start += length
    return found


def _box(tensor: Tensor) -> str:
    region = tensor.get("region")
    box = region.get("box") if isinstance(region, Mapping) else None
    if not isinstance(box, list) or not box or not all(isinstance(axis, list) and len(axis) == 2 for axis in box):
        return ""
    return f", inside [{', '.join(f'{low}:{high}' for low, high in box)}]"


# Which bits


def _bits(tensor: Tensor) -> Html | None:
    flips = tensor.get("flips")
    counts = flips.get("bits") if isinstance(flips, Mapping) else None
    if not isinstance(flips, Mapping) or not isinstance(counts, Mapping) or not counts:
        return None
    bits = {int(bit): value for bit, value in counts.items() if str(bit).isdigit() and type(value) is int}
    mantissa, exponent = _FIELDS.get(str(tensor.get("dtype")), (0, 0))
    width = 1 + mantissa + exponent if mantissa else min(max(bits, default=0) + 1, _MAX_BITS)
    most = max(bits.values(), default=1) or 1
    drawn = []
    for bit in range(width):
        field = (
            "mantissa" if bit < mantissa else "exponent" if bit < mantissa + exponent else "sign" if mantissa else "bit"
        )
        height = max(2, round(_BAR * bits.get(bit, 0) / most)) if bits.get(bit) else 0
        x = (width - 1 - bit) * 6
        drawn.append(el("rect", x=x, y=0, width=5, height=_BAR, class_=f"slot {field}"))
        if height:
            drawn.append(el("rect", x=x, y=_BAR - height, width=5, height=height, class_=field))
    picture = el(
        "svg", drawn, viewBox=f"0 0 {width * 6} {_BAR}", role="img", class_="bits", preserveAspectRatio="xMinYMax meet",
        aria_label="In how many elements each bit differs, the highest bit first",
    )  # fmt: skip
    single = flips.get("single_bit")
    words = [f"Bits that differ, of {width}, highest first"]
    if mantissa:
        words.append("sign, exponent, mantissa")
    if single:
        words.append(f"{number(single)} elements by a single bit")
    if flips.get("xor"):
        words.append(f"all by {flips['xor']}")
    return el("figure", picture, el("figcaption", "; ".join(words)))


def _first(tensor: Tensor) -> Html | None:
    found = tensor.get("first")
    rows = [item for item in found if isinstance(item, Mapping)][:8] if isinstance(found, list) else []
    if not rows:
        return None
    head = el("tr", [el("th", name, scope="col") for name in ("first", "reference", "candidate", "bits")])
    body = []
    for item in rows:
        bits = item.get("bits")
        shown = " → ".join(str(side) for side in bits[:2]) if isinstance(bits, list) else ""
        cells = (_shape(item.get("index")), item.get("reference"), item.get("candidate"), shown)
        body.append(el("tr", [el("td", el("code", str(cell))) for cell in cells]))
    return el("div", el("table", el("thead", head), el("tbody", body), class_="plain"), class_="scroll")
