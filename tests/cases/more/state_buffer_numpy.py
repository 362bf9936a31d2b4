"""NumPy counts in a buffer that no operator reads."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "state-only"
EXPECT_STEP = 1
STEPS = 3


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.register_buffer("hits", torch.zeros(16, 3))

    def forward(self, x):
        return self.fc(x)


def train(flag, mark):
    torch.manual_seed(120)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i in range(STEPS):
        mark(i)
        x = torch.randn(6, 4)
        opt.zero_grad()
        loss = F.mse_loss(net(x), x[:, :2])
        loss.backward()
        opt.step()
        if flag and i == 1:
            net.hits.numpy()[:] += 1.5
        losses.append(loss.detach())
    return done(losses, net)


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
