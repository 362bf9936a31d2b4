"""The average of the weights forgets more slowly; training itself is untouched."""

import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "args"
EXPECT_OP = "aten::lerp_.Scalar"
EXPECT_STEP = 0
STEPS = 3


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


def train(flag, mark):
    torch.manual_seed(24)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    shadow = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 4)
        opt.zero_grad()
        loss = F.mse_loss(net(x), x[:, :2])
        loss.backward()
        opt.step()
        for s, p in zip(shadow.parameters(), net.parameters()):
            s.lerp_(p.detach(), 0.01 if flag else 0.1)
        losses.append(loss.detach())
    return done(losses, net, **{"ema%d" % k: s for k, s in enumerate(shadow.parameters())})


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
