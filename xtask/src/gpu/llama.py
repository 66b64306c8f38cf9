"""Training steps of the example's Llama in PyTorch on one GPU: AdamW, fused, without recomputation.

Prints a line of JSON for each size and type: median step, tokens/s, peak memory, first and last loss.
"""

import json
import statistics
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    batch: int
    seq: int


SIZES = {
    "S": Shape(256, 4, 8, 4, 768, 2048, 8, 256),
    "1b": Shape(2048, 16, 32, 8, 8192, 128256, 4, 1024),
}


def turned(x, cos, sin):
    """Rotates pairs of halves; `x` is [batch, heads, seq, head_dim]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        head = shape.dim // shape.heads
        linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(shape.dim, 1e-5) for _ in range(2)])
        self.q = linear(shape.dim, shape.dim)
        self.k = linear(shape.dim, shape.kv_heads * head)
        self.v = linear(shape.dim, shape.kv_heads * head)
        self.o = linear(shape.dim, shape.dim)
        self.gate = linear(shape.dim, shape.hidden)
        self.up = linear(shape.dim, shape.hidden)
        self.down = linear(shape.hidden, shape.dim)

    def forward(self, x, cos, sin):
        rows, seq, dim = x.shape
        heads = lambda t, n: t.view(rows, seq, n, -1).transpose(1, 2)
        y = self.norms[0](x)
        q = turned(heads(self.q(y), self.shape.heads), cos, sin)
        k = turned(heads(self.k(y), self.shape.kv_heads), cos, sin)
        v = heads(self.v(y), self.shape.kv_heads)
        # Angles are in f32, and so is what they have turned.
        q, k = q.to(v.dtype), k.to(v.dtype)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(out.transpose(1, 2).reshape(rows, seq, dim))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.dim)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.dim, 1e-5)
        self.head = nn.Linear(shape.dim, shape.vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        head = shape.dim // shape.heads
        rates = 500_000.0 ** (-torch.arange(0, head, 2).float() / head)
        angles = torch.outer(torch.arange(shape.seq).float(), rates)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def train(name, kind, steps=10, warmup=3):
    shape = SIZES[name]
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Llama(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    torch.cuda.reset_peak_memory_stats()
    times, losses = [], []
    for _ in range(warmup + steps):
        tokens = torch.randint(0, shape.vocab, (shape.batch, shape.seq + 1), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=kind == "bf16"):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    step = statistics.median(times[warmup:])
    line = {
        "size": name,
        "type": kind,
        "step_ms": round(step * 1e3, 2),
        "tokens_per_s": round(shape.batch * shape.seq / step),
        "peak_MiB": torch.cuda.max_memory_allocated() >> 20,
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": [round(losses[0], 4), round(losses[-1], 4)],
        "torch": torch.__version__,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["S,f32", "S,tf32", "1b,tf32", "1b,bf16"]
    for run in wanted:
        train(*run.split(","))
        torch.cuda.empty_cache()
