"""The GPT of `bt.gpt` in PyTorch, and PyTorch's ways to save memory; imported only where PyTorch is installed."""

import gc
import json
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

RATE = 1e-3
ALONE = ("PyTorch", "PyTorch, torch.utils.checkpoint")
TOGETHER = ("PyTorch, DistributedDataParallel", "PyTorch, ZeroRedundancyOptimizer", "PyTorch, FSDP (fully_shard)")
LIKE_OURS = {
    ALONE[0]: "whole",
    ALONE[1]: "recompute=True",
    TOGETHER[0]: "whole",
    TOGETHER[1]: "shard_optimizer=True",
    TOGETHER[2]: "fully_shard=True",
}
"""Our counterpart of each. PyTorch's FSDP does not recompute blocks; ours does."""


class Block(nn.Module):
    def __init__(self, width, heads, recompute):
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.entry = nn.LayerNorm(width, eps=1e-3, bias=False)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.change = nn.LayerNorm(width, eps=1e-3, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        if self.recompute:
            return checkpoint(self.whole, x, use_reentrant=False)
        return self.whole(x)

    def whole(self, x):
        entry = self.entry(x)
        query, key, value = (self.in_heads(matrix(entry)) for matrix in (self.query, self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.change(x))))

    def in_heads(self, x):
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Gpt(nn.Module):
    def __init__(self, vocabulary=256, length=128, width=128, layers=2, heads=4, recompute=False):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads, recompute) for _ in range(layers)])
        self.last = nn.LayerNorm(width, eps=1e-3, bias=False)
        self.logits = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight
        return self.logits(self.last(self.blocks(x)))

    def set_weights(self, weights):
        """Load the weights of `bt.gpt`, in its order; a `Linear` stores its matrix transposed."""
        weights = [torch.tensor(weight) for weight in weights]
        with torch.no_grad():
            for module in self.modules():
                for parameter in module.parameters(recurse=False):
                    weight = weights.pop(0)
                    if isinstance(module, nn.Linear):
                        weight = weight.reshape(parameter.T.shape).T
                    parameter.copy_(weight)
        if weights:
            raise ValueError(f"{len(weights)} weights are left: this is not the same network")


def loss_of(weights, tokens, targets, **settings):
    """Return the loss of one batch with these weights."""
    model = Gpt(**settings)
    model.set_weights(weights)
    return loss(model, torch.tensor(tokens), torch.tensor(targets).long()).item()


def loss(model, tokens, targets):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def start(way, settings, batch, steps):
    """Return a function that trains for ``steps`` steps on ``batch`` examples of noise."""
    torch.manual_seed(0)
    model = Gpt(**settings, recompute=way == ALONE[1])
    if way == TOGETHER[2]:
        for block in model.blocks:
            fully_shard(block, mesh=_mesh())
        fully_shard(model, mesh=_mesh())
    elif way in TOGETHER:
        model = nn.parallel.DistributedDataParallel(model)
    if way == TOGETHER[1]:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=RATE)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    tokens, targets = torch.randint(256, (2, batch, settings.get("length", 128)))

    def epoch():
        for _ in range(steps):
            loss(model, tokens, targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def join(rank, workers, folder):
    """Join the other workers over gloo; each uses its share of the cores."""
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    distributed.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=workers)


def _mesh():
    return distributed.init_device_mesh("cpu", (distributed.get_world_size(),))


def measured(begin):
    """Return the bytes of tensors that a method holds, and its epoch."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        epoch = begin()
        epoch()
        gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        seen.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    moments = [event for event in events if event["name"] == "[memory]"]
    moments.sort(key=lambda event: event["ts"])
    totals = [event["args"]["Total Allocated"] for event in moments]
    before = totals[0] - moments[0]["args"]["Bytes"]
    return {"stays": totals[-1] - before, "peak": max(totals) - before}, epoch


def starts(ways, settings, batch, steps):
    return {way: partial(start, way, settings, batch, steps) for way in ways}
