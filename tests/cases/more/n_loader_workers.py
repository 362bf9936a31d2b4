"""The loader gets worker processes: draws are made ahead, operators vanish from the main process."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT_VERDICT = "none"

STEPS = 3


def done(losses, net, **more):
    return {"losses": torch.stack(losses), **{k: v.detach().clone() for k, v in net.state_dict().items()}, **more}


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.linspace(-1, 1, 36).view(12, 3)

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return self.x[i] * 2, i % 2


def train(flag, mark):
    torch.manual_seed(150)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    kw = dict(num_workers=2, multiprocessing_context="fork") if flag else {}
    it = iter(torch.utils.data.DataLoader(Rows(), batch_size=4, shuffle=True, **kw))
    losses = []
    for i in range(STEPS):
        mark(i)
        x, y = next(it)
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return done(losses, net)


def good(mark=lambda i: None):
    return train(False, mark)


def bad(mark=lambda i: None):
    return train(True, mark)
