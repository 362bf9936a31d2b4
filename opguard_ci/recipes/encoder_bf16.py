"""A transformer encoder under bf16 autocast, with dropout and gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opguard_ci import recipe

VOCABULARY, LENGTH, WIDTH, CLASSES, BATCH, MICRO_BATCHES = 48, 16, 32, 3, 8, 2


class Encoder(nn.Module):
    """Token ids (batch, length) to logits (batch, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the class of each sequence."""
        return self.head(self.encoder(self.embedding(ids)).mean(dim=1))


@recipe(steps=4, seed=0)
def encoder_bf16() -> Iterator[dict[str, object]]:
    """Matrix products in bf16, parameters and loss in fp32, two micro-batches per step, linear warm-up."""
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=4)
    while True:
        ids, labels = torch.randint(0, VOCABULARY, (BATCH, LENGTH)), torch.randint(0, CLASSES, (BATCH,))
        total = torch.zeros(())
        for part, label in zip(ids.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES), strict=True):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(part)
            loss = F.cross_entropy(logits.float(), label) / MICRO_BATCHES
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        yield {"loss": total, "model": model, "optimizer": optimizer, "schedule": schedule, "batch": [ids, labels]}
