"""A convolutional classifier with batch norm, fed by a shuffling DataLoader, trained with SGD and momentum."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from opguard_ci import recipe

CLASSES, IMAGES, BATCH = 5, 32, 8


class ConvNet(nn.Module):
    """Images (batch, 3, 16, 16) to logits (batch, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the classes."""
        features = F.max_pool2d(self.body(self.stem(images)), 2)
        return self.head(features.mean(dim=(2, 3)))


@recipe(steps=4, seed=0)
def conv_net() -> Iterator[dict[str, object]]:
    """One shuffled epoch, with a cosine schedule."""
    data = TensorDataset(torch.randn(IMAGES, 3, 16, 16), torch.randint(0, CLASSES, (IMAGES,)))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader))
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield {"loss": loss, "model": model, "optimizer": optimizer, "schedule": schedule, "batch": [images, labels]}
