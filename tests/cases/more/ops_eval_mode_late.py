"""After an evaluation the model is not put back into training mode: dropout is gone from there on."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "ops"
EXPECT_OP = "aten::bernoulli_.float"
ACCEPT_OPS = ("aten::relu.default",)
EXPECT_STEP = 2
STEPS = 4


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


def train(flag, mark):
    torch.manual_seed(58)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    val = torch.linspace(-1, 1, 8).view(2, 4)
    losses = []
    for i in range(STEPS):
        mark(i)
        x, y = torch.linspace(-2, 1 + i, 24).view(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
        if i == 1:
            net.eval()
            with torch.no_grad():
                net(val)
            if not flag:
                net.train()
    return done(losses, net)


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
