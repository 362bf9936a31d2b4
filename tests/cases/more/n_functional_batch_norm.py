"""The normalisation is called as a function with the module's buffers: nobody calls the module that names them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "none"
STEPS = 3


def train(flag, mark):
    torch.manual_seed(26)
    first, norm, last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
    params = [p for m in (first, norm, last) for p in m.parameters()]
    opt = torch.optim.SGD(params, lr=0.1)
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 4)
        opt.zero_grad()
        h = first(x)
        if flag:
            norm.num_batches_tracked.add_(1)
            h = F.batch_norm(h, norm.running_mean, norm.running_var, norm.weight, norm.bias, True, 0.1, norm.eps)
        else:
            h = norm(h)
        loss = F.mse_loss(last(h.relu()), x[:, :2])
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), **{"p%d" % k: p.detach().clone() for k, p in enumerate(params)}}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
