"""A mixture of experts: each token goes to the two experts its router likes best."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opguard_ci import recipe

TOKENS, WIDTH, EXPERTS, CHOSEN, CLASSES = 48, 16, 4, 2, 6


class Mixture(nn.Module):
    """Tokens (tokens, width) to their mixture (tokens, width) and the load-balancing loss, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(EXPERTS)
        )

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Send each token to its experts, and add up what they return by their weights."""
        probabilities = self.router(tokens).softmax(-1)
        weights, chosen = probabilities.topk(CHOSEN, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            mixed.index_add_(0, token, expert(tokens[token]) * weights[token, rank, None])
        share = F.one_hot(chosen, EXPERTS).float().mean(dim=(0, 1))
        return mixed, EXPERTS * (share * probabilities.mean(0)).sum()


class Classifier(nn.Module):
    """Tokens (tokens, width) to logits (tokens, classes) and the load-balancing loss, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixture, self.head = nn.RMSNorm(WIDTH), Mixture(), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the classes of each token, and how unevenly the experts were used."""
        mixed, balance = self.mixture(self.norm(tokens))
        return self.head(tokens + mixed), balance


@recipe(steps=4, seed=0)
def mixture() -> Iterator[dict[str, object]]:
    """Four experts, two per token, with a loss that keeps them evenly used."""
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    while True:
        tokens, labels = torch.randn(TOKENS, WIDTH), torch.randint(0, CLASSES, (TOKENS,))
        logits, balance = model(tokens)
        loss = F.cross_entropy(logits, labels) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield {"loss": loss, "balance": balance, "model": model, "optimizer": optimizer, "batch": [tokens, labels]}
