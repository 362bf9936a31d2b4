"""Two branches change places, and with them the order in which backward adds up three gradients."""

import torch
import torch.nn as nn

EXPECT_VERDICT = "inputs"
EXPECT_OP = "aten::add.Tensor"
EXPECT_STEP = 0
STEPS = 2


def train(flag, mark):
    torch.manual_seed(56)
    first, second, norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
    opt = torch.optim.SGD([p for m in (norm, first, second) for p in m.parameters()], lr=0.1)
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(5, 8)
        opt.zero_grad()
        h = norm(x)
        if flag:
            b = second(h)
            a = first(h)
        else:
            a = first(h)
            b = second(h)
        loss = a.relu().square().mean() + b.abs().mean() + h.pow(3).mean()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "weight": norm.weight.detach().clone()}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
