"""Gradients are clipped before they are unscaled, not after it."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "inputs"
EXPECT_OP = "aten::_foreach_norm.Scalar"
EXPECT_OP_GOOD = "aten::_amp_foreach_non_finite_check_and_unscale_.default"
EXPECT_STEP = 0
STEPS = 3


def train(flag, mark):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for i in range(STEPS):
        mark(i)
        opt.zero_grad()
        loss = F.cross_entropy(net(torch.randn(6, 4)), torch.arange(6) % 3)
        scaler.scale(loss).backward()
        if not flag:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
    return {k: v.detach().clone() for k, v in net.state_dict().items()}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
