"""A gradient reversal scales by another factor: forward and loss of the first step agree."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "args"
EXPECT_OP = "aten::mul.Tensor"
EXPECT_STEP = 0
STEPS = 3


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * -ctx.lam, None


class Net(nn.Module):
    def __init__(self, lam):
        super().__init__()
        self.body, self.task, self.domain, self.lam = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 2), lam

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.task(h), self.domain(Reverse.apply(h, self.lam))


def train(flag, mark):
    torch.manual_seed(25)
    net = Net(0.5 if flag else 0.75)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i in range(STEPS):
        mark(i)
        x, y, d = torch.randn(6, 5), torch.randint(0, 3, (6,)), torch.randint(0, 2, (6,))
        opt.zero_grad()
        task, domain = net(x)
        loss = F.cross_entropy(task, y) + F.cross_entropy(domain, d)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return done(losses, net)


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
