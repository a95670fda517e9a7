"""Muon for the matrices of the layers, Adam for everything else."""

import torch


def orthogonalise(g, steps=5):
    x = g / (g.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tr = x.shape[-2] > x.shape[-1]
    if tr:
        x = x.transpose(-1, -2)
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.transpose(-1, -2) if tr else x


class Optimiser:
    def __init__(self, named, lr_muon=0.02, lr_adam=3e-3, betas=(0.9, 0.98)):
        self.muon, self.adam = [], []
        for n, p in named:
            is_matrix = (
                p.dim() >= 2
                and "conv1d" not in n
                and "embed" not in n
                and "lm_head" not in n
                and "block_inject" not in n
                and not n.endswith(("gate.weight", "in_proj_a.weight", "in_proj_b.weight"))
            )
            (self.muon if is_matrix else self.adam).append((n, p))
        self.lr_m, self.lr_a, self.b = lr_muon, lr_adam, betas
        self.s = {n: [torch.zeros_like(p), torch.zeros_like(p)] for n, p in named}
        self.t = 0

    @torch.no_grad()
    def step(self, scale, clip=1.0):
        self.t += 1
        ps = [p for _, p in self.muon + self.adam if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in ps]).norm()
        c = min(1.0, clip / (float(norm) + 1e-6))
        for n, p in self.muon:
            if p.grad is None:
                continue
            m = self.s[n][0]
            m.mul_(0.95).add_(p.grad, alpha=1.0)
            u = orthogonalise(p.grad + 0.95 * m)
            lr = self.lr_m * scale * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
            p.mul_(1 - 0.02 * scale * self.lr_m)
            p.add_(u, alpha=-lr)
        b1, b2 = self.b
        for n, p in self.adam:
            if p.grad is None:
                continue
            m, v = self.s[n]
            g = p.grad * c
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            mh, vh = m / (1 - b1**self.t), v / (1 - b2**self.t)
            p.addcdiv_(mh, vh.sqrt() + 1e-8, value=-self.lr_a * scale)
        for p in ps:
            p.grad = None
        return float(norm)
