"""The targets are the same rows, shifted by one: another view of a batch that comes from outside of torch."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "inputs"
EXPECT_OP = "aten::mse_loss.default"
EXPECT_STEP = 0
STEPS = 2


def train(flag, mark):
    torch.manual_seed(41)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i in range(STEPS):
        mark(i)
        b = torch.from_numpy(np.random.RandomState(i).randn(7, 4).astype(np.float32))
        opt.zero_grad()
        loss = F.mse_loss(net(b[:4]), b[2:6] if flag else b[1:5])
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses)}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
