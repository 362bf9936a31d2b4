"""Positions are added to the batch in place, and the loss reads the batch again."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "ops"
EXPECT_OP = "aten::add_.Tensor"
ACCEPT_OPS = ("aten::add.Tensor",)
EXPECT_STEP = 0
STEPS = 3


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


def train(flag, mark):
    torch.manual_seed(216)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    pos = torch.linspace(0, 1, 4)
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 4)
        h = x.add_(pos) if flag else x + pos
        opt.zero_grad()
        loss = F.mse_loss(net(h), x)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return done(losses, net)


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
