"""Columns of the batch are scaled in place, where a copy of them was."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "ops"
EXPECT_OP = "aten::mul_.Tensor"
EXPECT_STEP = 1
STEPS = 3


def train(flag, mark):
    torch.manual_seed(5)
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(STEPS):
        mark(i)
        opt.zero_grad()
        batch = torch.randn(6, 4)
        columns = batch[:, :2] if flag and i == 1 else batch[:, :2].clone()
        columns.mul_(2.0)
        loss = F.cross_entropy(net(batch), torch.arange(6) % 3) + columns.square().mean()
        loss.backward()
        opt.step()
    return {k: v.detach().clone() for k, v in net.state_dict().items()}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
