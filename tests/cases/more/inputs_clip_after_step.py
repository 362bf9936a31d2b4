"""Gradients are clipped when the optimizer has used them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "inputs"
EXPECT_OP = "aten::add_.Tensor"
EXPECT_STEP = 0
STEPS = 2


def train(flag, mark):
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 4)
        opt.zero_grad()
        loss = F.mse_loss(net(x), x[:, :2])
        loss.backward()
        if not flag:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1, foreach=False)
        opt.step()
        if flag:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1, foreach=False)
        losses.append(loss.detach())
    return {"losses": torch.stack(losses)}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
