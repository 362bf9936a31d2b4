"""A GRU's momentum is another one in the multi-tensor optimizer, which shows in its second step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "args"
EXPECT_OP = "aten::_foreach_mul_.Scalar"
EXPECT_STEP = 1
STEPS = 3


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


def train(flag, mark):
    torch.manual_seed(8)
    net = nn.GRU(4, 5, batch_first=True)
    head = nn.Linear(5, 1)
    opt = torch.optim.SGD(
        [*net.parameters(), *head.parameters()], lr=0.05, momentum=0.85 if flag else 0.9, foreach=True
    )
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(3, 6, 4)
        opt.zero_grad()
        loss = F.mse_loss(head(net(x)[0]), x[..., :1])
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return done(losses, net, head=head.weight.detach().clone())


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
