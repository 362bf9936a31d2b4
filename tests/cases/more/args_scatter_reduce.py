"""The second of two message-passing layers adds messages up instead of averaging them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "args"
EXPECT_OP = "aten::scatter_reduce.two"
EXPECT_STEP = 0
STEPS = 3


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


class Layer(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.msg, self.upd, self.how = nn.Linear(10, 5), nn.Linear(10, 5), how

    def forward(self, h, src, dst):
        m = F.relu(self.msg(torch.cat([h[src], h[dst]], -1)))
        agg = torch.zeros_like(h).scatter_reduce(0, dst[:, None].expand_as(m), m, self.how, include_self=False)
        return self.upd(torch.cat([h, agg], -1))


def train(flag, mark):
    torch.manual_seed(27)
    one, two = Layer("mean"), Layer("sum" if flag else "mean")
    net = nn.ModuleList([one, two])
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    src, dst = torch.randint(0, 7, (20,)), torch.randint(0, 7, (20,))
    losses = []
    for i in range(STEPS):
        mark(i)
        h, y = torch.randn(7, 5), torch.randn(7, 5)
        opt.zero_grad()
        loss = F.mse_loss(two(torch.relu(one(h, src, dst)), src, dst), y)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return done(losses, net)


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
