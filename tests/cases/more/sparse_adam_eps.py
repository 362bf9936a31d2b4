"""An epsilon of an optimizer that works on the values inside sparse tensors."""

import torch
import torch.nn as nn

EXPECT_VERDICT = "args"
EXPECT_OP = "aten::add_.Tensor"
EXPECT_STEP = 0
STEPS = 3


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


def train(flag, mark):
    torch.manual_seed(229)
    emb = nn.Embedding(20, 4, sparse=True)
    opt = torch.optim.SparseAdam(emb.parameters(), lr=0.01, eps=1e-4 if flag else 1e-8)
    losses = []
    for i in range(STEPS):
        mark(i)
        ids = torch.randint(0, 20, (6,))
        opt.zero_grad()
        loss = emb(ids).pow(2).mean()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return done(losses, emb)


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
