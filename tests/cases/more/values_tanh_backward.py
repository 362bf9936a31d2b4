"""A backward kernel flips a bit in one step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "values"
EXPECT_OP = "aten::tanh_backward.default"
EXPECT_STEP = 2
STEPS = 4


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


def train(flag, mark):
    torch.manual_seed(61)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    state = {"step": 0}

    def backward(g, y):
        out = g * (1 - y * y)
        if flag and state["step"] == 2:
            out.view(torch.int32)[0, 3] ^= 1 << 10
        return out

    lib = torch.library.Library("aten", "IMPL")
    lib.impl("tanh_backward", backward, "CPU")
    losses = []
    try:
        for i in range(STEPS):
            mark(i)
            state["step"] = i
            x = torch.randn(6, 4)
            opt.zero_grad()
            loss = F.mse_loss(net(x), x[:, :2])
            loss.backward()
            opt.step()
            losses.append(loss.detach())
    finally:
        lib._destroy()
    return done(losses, net)


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
