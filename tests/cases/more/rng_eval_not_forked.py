"""Sampling for a metric no longer runs under fork_rng: both runs make its draws, one undoes them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "rng"
EXPECT_OP = "aten::randn.default"
EXPECT_STEP = 2
STEPS = 4


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


def train(flag, mark):
    torch.manual_seed(76)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    val = torch.linspace(-1, 1, 24).view(6, 4)
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 4)
        opt.zero_grad()
        loss = F.mse_loss(net(x), x[:, :2])
        loss.backward()
        opt.step()
        losses.append(loss.detach())
        if i == 1:
            with torch.random.fork_rng(enabled=not flag), torch.no_grad():
                torch.stack([net(val) for _ in range(3)]).std(0).mean().item()
    return done(losses, net)


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
