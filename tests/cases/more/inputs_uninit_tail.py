"""A padded workspace is no longer cleared, and its tail reaches the loss."""

import torch
import torch.nn as nn

EXPECT_VERDICT = "inputs"
EXPECT_OP = "aten::mul.Tensor"
EXPECT_STEP = 0
EXPECT_ORIGIN_OP = "aten::empty.memory_format"
STEPS = 3


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


def dirty(shape, value):
    block = torch.empty(*shape)
    block.numpy()[:] = value
    del block


def train(flag, mark):
    torch.manual_seed(100)
    net = nn.Linear(8, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 8)
        dirty((64, 8), 0.125 + i)
        work = torch.empty(64, 8) if flag else torch.zeros(64, 8)
        work[:6] = x
        h = work * 0.5
        opt.zero_grad()
        loss = net(h).pow(2).mean()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return done(losses, net)


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
