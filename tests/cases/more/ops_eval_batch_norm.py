"""A normalisation stays in evaluation mode: batches are not counted, and the operator's arguments follow from that."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "ops"
EXPECT_OP = "aten::native_batch_norm.default"
EXPECT_OP_GOOD = "aten::add_.Tensor"
EXPECT_STEP = 1
STEPS = 3


def train(flag, mark):
    torch.manual_seed(90)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i in range(STEPS):
        mark(i)
        if flag and i == 1:
            net[1].eval()
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
