"""PyTorch's training tokens/s on the shapes of `cargo bench -p tombolo-engine`, for comparison.

    python -m venv /tmp/baseline && /tmp/baseline/bin/pip install torch
    /tmp/baseline/bin/python host/engine/benches/baseline.py [--threads 2] [--rounds 5] [tiny] [small] [medium]

Any PyTorch from 2.4 on; the CUDA wheels work on a machine without a GPU, the CPU ones are much smaller. The model is
written as one would write it in PyTorch: f32, eager, RMSNorm, rotary embedding, causal
`scaled_dot_product_attention`, SwiGLU, untied head, fused AdamW, gradients clipped to norm 1 as the engine does. Both
programs want an otherwise idle machine: PyTorch's OpenMP threads slow down many times beside one busy process.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

# vocabulary, channels, feed-forward channels, layers, heads, context, batch, steps a round
SIZES = {
    "tiny": (256, 128, 384, 4, 4, 128, 16, 8),
    "small": (4096, 384, 1024, 6, 6, 256, 8, 4),
    "medium": (32_000, 768, 2048, 12, 12, 512, 2, 2),
}


def rotated(x, cosines, sines):
    low, high = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-high, low), dim=-1) * sines


class Layer(nn.Module):
    def __init__(self, channels, inner, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.RMSNorm(channels, eps=1e-5)
        self.qkv = nn.Linear(channels, 3 * channels, bias=False)
        self.output = nn.Linear(channels, channels, bias=False)
        self.norm2 = nn.RMSNorm(channels, eps=1e-5)
        self.gate_up = nn.Linear(channels, 2 * inner, bias=False)
        self.down = nn.Linear(inner, channels, bias=False)

    def forward(self, x, cosines, sines):
        b, t, c = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        q, k = rotated(q, cosines, sines), rotated(k, cosines, sines)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(out.transpose(1, 2).reshape(b, t, c))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, vocabulary, channels, inner, layers, heads, context):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, channels)
        self.layers = nn.ModuleList(Layer(channels, inner, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(channels, eps=1e-5)
        self.head = nn.Linear(channels, vocabulary, bias=False)
        d = channels // heads
        frequencies = 1.0 / 10_000.0 ** (torch.arange(0, d, 2) / d)
        angles = torch.outer(torch.arange(context).float(), frequencies).repeat(1, 2)  # (T, D)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        return self.head(self.norm(x))


def measure(name, rounds):
    vocabulary, channels, inner, layers, heads, context, batch, steps = SIZES[name]
    model = Model(vocabulary, channels, inner, layers, heads, context)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    tokens = torch.randint(vocabulary, (batch, context + 1))

    def step():
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, vocabulary), tokens[:, 1:].reshape(-1))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return loss.item()

    speeds = []
    step()
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        speeds.append(steps * batch * context / (time.perf_counter() - start))
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    print(
        f"{name} ({parameters:.2f} M parameters), {torch.get_num_threads()} thread(s), PyTorch {torch.__version__}: "
        f"{statistics.median(speeds):.0f} tokens/s, median of {rounds} ({min(speeds):.0f} to {max(speeds):.0f})"
    )


def main():
    parser = argparse.ArgumentParser(description="PyTorch's training tokens/s")
    parser.add_argument("sizes", nargs="*", default=["tiny"], help=f"of {', '.join(SIZES)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.sizes if name not in SIZES]
    if unknown:
        parser.error(f"unknown size {unknown[0]}; known are {', '.join(SIZES)}")
    torch.set_num_threads(arguments.threads)
    for name in arguments.sizes:
        measure(name, arguments.rounds)


if __name__ == "__main__":
    main()
