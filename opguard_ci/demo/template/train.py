"""Trains the model for a few steps."""

import torch
import torch.nn.functional as F
from smallgpt.data import micro_batches
from smallgpt.model import SmallGPT
from smallgpt.optim import build
from torch import nn

from opguard_ci import recipe

TEMPERATURE = 1.3


@recipe(steps=4, seed=0)
def train():
    """Two micro-batches a step, matrix products in bf16, clipped gradients."""
    model = SmallGPT()
    optimizer, schedule = build(model)
    for batch in micro_batches(count=2):
        total = torch.zeros(())
        for inputs, targets in batch:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(inputs).flatten(0, 1)
            loss = F.cross_entropy(logits.float() / TEMPERATURE, targets.flatten()) / len(batch)
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        yield {"loss": total, "model": model, "optimizer": optimizer, "batch": [pair[0] for pair in batch]}
