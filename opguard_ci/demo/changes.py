"""What the demo changes in its project: faults that alter what training computes, and refactors that do not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

TARGET: Final = "train.py:train"

_TEMPLATE: Final = Path(__file__).parent / "template"
_MODEL: Final = "smallgpt/model.py"
_DATA: Final = "smallgpt/data.py"
_OPTIM: Final = "smallgpt/optim.py"
_TRAIN: Final = "train.py"


@dataclass(frozen=True, slots=True)
class Change:
    """A kind of change: ``old`` occurs once in ``file``, and one of ``new`` takes its place.

    ``op`` is the operator that must be blamed, or ``partner`` where the two have changed places; a refactor has none.
    """

    kind: str
    file: str
    old: str
    new: tuple[str, ...]
    op: str | None = None
    partner: str | None = None


FAULTS: Final = (
    Change("norm-eps", _MODEL, "norm2 = nn.LayerNorm(width, eps=1e-5)",
           tuple(f"norm2 = nn.LayerNorm(width, eps={eps})" for eps in ("1e-6", "1e-8", "1e-3")),
           "aten.native_layer_norm.default"),
    Change("activation-form", _MODEL, "F.gelu(self.gate(x))", ('F.gelu(self.gate(x), approximate="tanh")',),
           "aten.gelu.default"),
    Change("attention-scale", _MODEL, "self.scale = self.head_width**-0.5", ("self.scale = width**-0.5",),
           "aten.mul.Tensor"),
    Change("mask-row", _MODEL, ".triu(1)", (".triu(2)", ".triu(3)"), "aten.triu.default"),
    Change("initialisation", _MODEL, "std=0.02", ("std=0.2", "std=0.01"), "aten.normal_.default"),
    Change("dropout-place", _MODEL, "self.dropout(self.tokens(ids) + self.positions.weight)",
           ("self.dropout(self.tokens(ids)) + self.positions.weight",), "aten.mul.Tensor",
           "aten.add.Tensor"),
    Change("label-shift", _DATA, "targets = tokens[:, 1:]", ("targets = tokens[:, :-1]",),
           "aten.nll_loss_forward.default"),
    Change("shared-memory", _DATA, "tokens[:, :-1].clone()", ("tokens[:, :-1]",),
           "aten.nll_loss_forward.default"),
    Change("decay-norms", _OPTIM, '"weight_decay": 0.0', ('"weight_decay": 0.1', '"weight_decay": 0.01'),
           "aten.mul_.Tensor"),
    Change("schedule", _OPTIM, "(step + 1) / warmup", ("(step + 1) / (warmup + 1)", "step / warmup"),
           "aten.mul_.Tensor"),
    Change("cast-place", _TRAIN, "logits.float() / TEMPERATURE", ("(logits / TEMPERATURE).float()",),
           "aten.div.Tensor"),
    Change("clip-place", _TRAIN, "        nn.utils.clip_grad_norm_(", ("            nn.utils.clip_grad_norm_(",),
           "aten._foreach_norm.Scalar"),
    Change("extra-draw", _TRAIN, "        optimizer.zero_grad()\n",
           ("        optimizer.zero_grad()\n        verbose = bool(torch.rand(()) < 0.1)\n",),
           "aten.rand.default"),
)  # fmt: skip
"""Each changes what training computes, in one line."""

REFACTORS: Final = (
    Change("rename", _MODEL, "norm1", ("attention_norm",)),
    Change("view-round-trip", _MODEL,
           "self.qkv(x).view(batch, length, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)",
           ("(\n            part.reshape(batch, length, self.heads, self.head_width).transpose(1, 2)"
            "\n            for part in self.qkv(x).chunk(3, dim=-1)\n        )",)),
    Change("reorder", _MODEL, "        gate = F.gelu(self.gate(x))\n        value = self.value(x)\n",
           ("        value = self.value(x)\n        gate = F.gelu(self.gate(x))\n",)),
)  # fmt: skip
"""Each leaves every surviving bit as it was."""

CHANGES: Final = FAULTS + REFACTORS


def project() -> dict[str, str]:
    """The files of the demo's project, by path."""
    files = sorted(_TEMPLATE.rglob("*.py"))
    return {file.relative_to(_TEMPLATE).as_posix(): file.read_text(encoding="utf-8") for file in files}
