"""Gradients are asked for in place of ``backward()``, so that nothing says which tensor the loss is."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "none"
STEPS = 3


def train(flag, mark):
    torch.manual_seed(25)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    params = list(net.parameters())
    opt = torch.optim.SGD(params, lr=0.1)
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 4)
        opt.zero_grad()
        loss = F.mse_loss(net(x), x[:, :2])
        if flag:
            for p, g in zip(params, torch.autograd.grad(loss, params)):
                p.grad = g
        else:
            loss.backward()
        opt.step()
    return {k: v.detach().clone() for k, v in net.state_dict().items()}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
