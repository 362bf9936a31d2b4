"""The average of the weights begins a step later: what it goes on from is what it was before, not other data."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel

EXPECT_VERDICT = "ops"
ACCEPT_OPS = ("aten::add_.Tensor", "aten::copy_.default", "aten::eq.Scalar")
EXPECT_STEP = 1
STEPS = 4


def train(flag, mark):
    torch.manual_seed(5)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    average = AveragedModel(net)
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 4)
        opt.zero_grad()
        F.mse_loss(net(x), x[:, :2]).backward()
        opt.step()
        if i >= (2 if flag else 1):
            average.update_parameters(net)
    return {k: v.detach().clone() for k, v in average.state_dict().items()}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
