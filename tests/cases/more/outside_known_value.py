"""NumPy puts into an activation what both runs have elsewhere in the step."""

import torch
import torch.nn as nn

EXPECT_VERDICT = "outside-write"
EXPECT_OP = "aten::mul.Tensor"
EXPECT_STEP = 1
STEPS = 3


def train(flag, mark):
    torch.manual_seed(5)
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(STEPS):
        mark(i)
        opt.zero_grad()
        h = net(torch.randn(6, 4))
        g = h.sin()
        if flag and i == 1:
            h.detach().numpy()[:] = g.detach().numpy()
        loss = (h * 3.0).exp().mean() + g.mean()
        loss.backward()
        opt.step()
    return {k: v.detach().clone() for k, v in net.state_dict().items()}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
