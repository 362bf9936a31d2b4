"""Another optimizer: what both do alike, with other factors, is not all that it does."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "ops"
EXPECT_OP = "aten::addcmul_.default"
EXPECT_OP_GOOD = "aten::lerp_.Scalar"
EXPECT_STEP = 0
STEPS = 2


def train(flag, mark):
    torch.manual_seed(91)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    opt = (torch.optim.RMSprop if flag else torch.optim.Adam)(net.parameters(), lr=0.01, foreach=False)
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 4)
        opt.zero_grad()
        loss = F.mse_loss(net(x), x[:, :2])
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses)}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
