"""Noise is drawn before the batch, not after it."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "rng"
EXPECT_OP = "aten::rand.default"
EXPECT_OP_GOOD = "aten::randn.default"
EXPECT_STEP = 1
STEPS = 3


def train(flag, mark):
    torch.manual_seed(5)
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(STEPS):
        mark(i)
        opt.zero_grad()
        if flag and i == 1:
            noise, batch = torch.rand(6, 4), torch.randn(6, 4)
        else:
            batch, noise = torch.randn(6, 4), torch.rand(6, 4)
        loss = F.cross_entropy(net(batch + noise), torch.arange(6) % 3)
        loss.backward()
        opt.step()
    return {k: v.detach().clone() for k, v in net.state_dict().items()}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
