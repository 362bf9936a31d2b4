"""An LSTM language model on sequences of unequal length, with its state carried from step to step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opguard_ci import recipe

VOCABULARY, LENGTH, WIDTH, BATCH = 40, 12, 24, 4
PADDING = -100

State = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    """Token ids (batch, length) and a state to logits (batch, length, vocabulary) and the next state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Logits of the next token at every position, and the state after the last one."""
        hidden, state = self.lstm(self.embedding(ids), state)
        return self.head(hidden), state


@recipe(steps=4, seed=0)
def lstm() -> Iterator[dict[str, object]]:
    """Truncated backpropagation through time with Adam; padded targets do not count."""
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    state: State | None = None
    while True:
        ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
        lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1))
        targets = ids[:, 1:].masked_fill(torch.arange(LENGTH) >= lengths, PADDING)
        logits, state = model(ids[:, :-1], state)
        state = (state[0].detach(), state[1].detach())
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        yield {"loss": loss, "model": model, "optimizer": optimizer, "state": list(state), "batch": [ids, targets]}
