"""The rate changes in the last step, whose parameters nobody returns: the model is gone when the step ends."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "args"
EXPECT_OP = "aten::add_.Tensor"
EXPECT_STEP = 2
STEPS = 3


def train(flag, mark):
    torch.manual_seed(240)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 4)
        opt.zero_grad()
        loss = F.mse_loss(net(x), x[:, :2])
        loss.backward()
        if flag and i == STEPS - 1:
            opt.param_groups[0]["lr"] = 0.2
        opt.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses)}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
