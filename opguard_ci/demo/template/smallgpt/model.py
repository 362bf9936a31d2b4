"""The model: a decoder-only transformer with gated feed-forward layers."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.scale = self.head_width**-0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        """Mix the positions of ``x``, of shape (batch, length, width)."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-2, -1) * self.scale).masked_fill(future, float("-inf"))
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """Two projections, one of which gates the other."""

    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, 2 * width)
        self.value = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        """Transform each position of ``x`` by itself."""
        gate = F.gelu(self.gate(x))
        value = self.value(x)
        return self.down(gate * value)


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-5)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-5)
        self.feed_forward = FeedForward(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        """Attention and feed-forward, each behind a norm and beside a residual connection."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.feed_forward(self.norm2(x)))


class SmallGPT(nn.Module):
    """Token ids (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, vocabulary=48, length=16, width=32, heads=4, depth=2, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids):
        """Logits of the next token at every position."""
        x = self.dropout(self.tokens(ids) + self.positions.weight)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
