"""A custom operator writes to its input in hiding, and is given another factor too."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "hidden-mutation"
EXPECT_OP = "opguard_more::centred.default"
EXPECT_STEP = 1
STEPS = 3


def train(flag, mark):
    torch.manual_seed(5)
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    hides = False

    def centred(x, factor):
        mean = x.mean()
        return (x.sub_(mean) if hides else x - mean) * factor

    library = torch.library.Library("opguard_more", "FRAGMENT")
    library.define("centred(Tensor x, float factor) -> Tensor")
    library.impl("centred", centred, "CPU")
    try:
        for i in range(STEPS):
            mark(i)
            opt.zero_grad()
            hides = flag and i == 1
            batch = torch.randn(6, 4)
            mixed = torch.ops.opguard_more.centred(batch, 0.25 if hides else 0.5) + batch
            loss = F.cross_entropy(net(mixed), torch.arange(6) % 3)
            loss.backward()
            opt.step()
    finally:
        library._destroy()
    return {k: v.detach().clone() for k, v in net.state_dict().items()}


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
