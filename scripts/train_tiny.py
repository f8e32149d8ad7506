"""Train the tiny Moondream 2 that is shipped with the project, on synthetic pictures.

Two stages, counted in steps: first the vision tower alone learns what each patch shows (cheap,
dense labels), then everything learns to answer, with many questions packed behind each picture.
Every batch is a function of the seed and the step, and the state is saved often, so a run can be
stopped and continued. The exported checkpoint holds the averaged weights.

    python -m scripts.train_tiny --state run/ --export vllm_photon/assets/tiny-moondream
"""

import argparse
import copy
import math
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.scenes import COLOURS, KINDS
from scripts.tiny.data import Batches
from scripts.tiny.evaluate import evaluate
from scripts.tiny.export import CROP, PATCH, export, load, model_config
from scripts.tiny.model import PatchHeads, TinyMoondream
from scripts.tiny.muon import Muon
from scripts.tiny.tasks import BINS, NOWHERE, Asker
from scripts.tiny.vocabulary import build_tokenizer, templates


@dataclass(frozen=True)
class Plan:
    """How long each stage is and how big its batches are."""

    seed: int = 1
    vision_steps: int = 1000
    vision_batch: int = 32
    steps: int = 6000
    batch: int = 16
    tokens: int = 128
    lr: float = 2e-3
    warmup: int = 200
    decay: float = 0.3
    average: float = 0.998
    every: int = 250

    def rate(self, step: int) -> float:
        """The learning rate: warm-up in each stage, flat, then linearly down at the end."""
        since = step - self.vision_steps if step >= self.vision_steps else step
        left = (self.vision_steps + self.steps - step) / (self.decay * self.steps)
        return self.lr * min(1.0, (since + 1) / self.warmup, left)


class Trainee(nn.Module):
    """The model with its training-only heads, so that one state dict holds both."""

    def __init__(self, model: TinyMoondream) -> None:
        super().__init__()
        self.model = model
        dim = model.vision.post_ln.normalized_shape[0]
        self.patches = PatchHeads(dim, len(COLOURS), len(KINDS))


def patch_loss(heads: PatchHeads, features: Tensor, labels: Tensor) -> Tensor:
    """What each patch shows, against `Batches._patches` labels (B, N, 8)."""
    features = features.float()
    colour, kind = labels[..., 0].long(), labels[..., 1].long()
    shown = colour > 0
    loss = F.cross_entropy(heads.colour(features).flatten(0, 1), colour.flatten())
    loss = loss + F.cross_entropy(heads.kind(features).flatten(0, 1), kind.flatten())
    centre = heads.centre(features)[..., 0]
    loss = loss + 3 * F.binary_cross_entropy_with_logits(centre, labels[..., 2])
    box = heads.box(features[shown])
    place = F.smooth_l1_loss(box[:, :2] * 0.1, labels[shown][:, 3:5], beta=0.01)
    size = F.smooth_l1_loss(box[:, 2:], labels[shown][:, 5:7], beta=0.1)
    return loss + 10 * place + size


def smooth_bins(logits: Tensor, bins: Tensor, sigma: float) -> Tensor:
    """Cross entropy of (M, 1024) logits against a Gaussian around the true bin, mean over M."""
    offset = torch.arange(BINS, dtype=torch.float32)[None] - bins[:, None]
    target = torch.softmax(-0.5 * (offset / sigma) ** 2, dim=-1)
    return -(target * F.log_softmax(logits.float(), dim=-1)).sum(-1).mean()


def answer_loss(model: TinyMoondream, features: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Token, coordinate and size losses of every packed question."""
    cache = model.prefix(features)
    prefix, segment = cache[0][0].shape[2], batch["segment"]
    b, t = segment.shape
    same = (segment[:, :, None] == segment[:, None, :]) & torch.ones(t, t, dtype=torch.bool).tril()
    mask = torch.cat([torch.ones(b, t, prefix, dtype=torch.bool), same], dim=-1)[:, None]
    x = model.embed(batch["ids"], batch["kind"], batch["coord"], batch["size"])
    hidden, shares = model.text.tail(x, prefix + batch["position"], mask, cache)
    asked = batch["target"] >= 0
    weight = batch["weight"][asked]
    token = F.cross_entropy(
        model.text.logits(hidden[asked]).float(), batch["target"][asked], reduction="none"
    )
    loss = (token * weight).sum() / weight.sum()
    placed = batch["coord_target"] >= 0
    coords = model.region.coord_decoder(hidden[placed])
    loss = loss + smooth_bins(coords, batch["coord_target"][placed], 8.0) - COORD_FLOOR
    sized = batch["size_target"][..., 0] >= 0
    sizes = model.region.size_decoder(hidden[sized]).unflatten(-1, (2, BINS))
    size_loss = smooth_bins(sizes.flatten(0, 1), batch["size_target"][sized].flatten(), 12.0)
    loss = loss + 0.5 * (size_loss - SIZE_FLOOR)
    return loss + GUIDE_WEIGHT * sum(guide_loss(shares[i], batch) for i in GUIDED_LAYERS)


def guide_loss(share: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """How little one head looks at the patches that show the answer (at BOS, if nothing does).

    share is (B, T, P + T). Without this the model takes very long to find out that the words of
    the question name what a patch shows.
    """
    source, owner = batch["source"], batch["patches"][..., 7].long()
    patches = owner.shape[1]
    there = owner[:, None, :] == source[:, :, None]
    looked = (share[..., 1 : 1 + patches].float() * there).sum(-1)
    looked = torch.where(source == NOWHERE, share[..., 0].float(), looked)
    asked = (there.any(-1) & (source > 0)) | (source == NOWHERE)
    return -torch.log(looked[asked] + 1e-3).mean()


# One head of these layers is taught where to look.
GUIDED_LAYERS, GUIDE_WEIGHT = (1, 2), 0.3
# Entropy of the smoothed targets, so that a perfect answer costs nothing in the log.
COORD_FLOOR = math.log(8.0 * math.sqrt(2 * math.pi * math.e))
SIZE_FLOOR = math.log(12.0 * math.sqrt(2 * math.pi * math.e))


def optimizers(trainee: Trainee, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for everything else."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, p in trainee.named_parameters():
        (matrices if ".blocks." in name and p.ndim == 2 else others).append(p)
    return [
        Muon(matrices, plan.lr),
        torch.optim.AdamW(others, lr=plan.lr, weight_decay=0.01, betas=(0.9, 0.98)),
    ]


def batches(plan: Plan, asker: Asker, start: int, workers: int) -> Iterator[tuple[int, dict]]:
    """(step, batch) from `start` to the end of the plan."""
    total = plan.vision_steps + plan.steps
    stages = (
        (0, plan.vision_steps, plan.vision_batch, 0),
        (plan.vision_steps, total, plan.batch, plan.tokens),
    )
    for first, last, batch, tokens in stages:
        data = Batches(asker, plan.seed, total, batch, tokens, CROP, PATCH)
        todo = range(max(first, start), last)
        yield from zip(
            todo,
            DataLoader(data, batch_size=None, sampler=todo, num_workers=workers),
            strict=True,
        )


def train(plan: Plan, state: Path, target: Path, workers: int) -> None:
    """Run, or continue, the plan; export the averaged weights whenever they score better."""
    torch.manual_seed(plan.seed)
    tokenizer = build_tokenizer()
    asker = Asker(tokenizer, templates(tokenizer))
    config = model_config(tokenizer)
    trainee = Trainee(TinyMoondream(config))
    average = copy.deepcopy(trainee.model)
    opts = optimizers(trainee, plan)
    start, best = 0, -1.0
    state.mkdir(parents=True, exist_ok=True)
    saved = state / "state.pt"
    if saved.exists():
        kept = torch.load(saved, weights_only=True)
        trainee.load_state_dict(kept["trainee"])
        average.load_state_dict(kept["average"])
        for opt, s in zip(opts, kept["opts"], strict=True):
            opt.load_state_dict(s)
        start, best = kept["step"], kept["best"]
    size = sum(p.numel() for p in trainee.model.parameters())
    print(f"{size / 1e6:.2f} M parameters, from step {start}", flush=True)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    began, running = time.monotonic(), 0.0
    for step, batch in batches(plan, asker, start, workers):
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = plan.rate(step)
        with torch.autocast("cpu", torch.bfloat16):
            pixels = batch["pixels"].float() / 127.5 - 1
            features = trainee.model.vision.encode(pixels)
            loss = patch_loss(trainee.patches, features, batch["patches"])
            if step >= plan.vision_steps:
                loss = 0.3 * loss + answer_loss(trainee.model, features, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(trainee.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        keep = min(plan.average, (step + 1) / (step + 10))
        with torch.no_grad():
            for a, p in zip(average.parameters(), trainee.model.parameters(), strict=True):
                a.lerp_(p, 1 - keep)
        running += loss.item()
        if (step + 1) % 50 == 0:
            pace = (step + 1 - start) / (time.monotonic() - began)
            print(f"{step + 1} loss {running / 50:.4f} {pace:.2f} steps/s", flush=True)
            running = 0.0
        due = (step + 1) % plan.every == 0 or step + 1 == plan.vision_steps + plan.steps
        if not due and not stopping:
            continue
        if due and step >= plan.vision_steps:
            with torch.autocast("cpu", torch.bfloat16):
                figures = evaluate(average, asker, CROP, 384, seed=0).summary()
            print(f"{step + 1} held out {figures}", flush=True)
            merit = sum(v for k, v in figures.items() if k != "point_error")
            if merit > best:
                best = merit
                export(average.state_dict(), config, tokenizer, target, torch.bfloat16)
        kept = {
            "trainee": trainee.state_dict(),
            "average": average.state_dict(),
            "opts": [opt.state_dict() for opt in opts],
            "step": step + 1,
            "best": best,
        }
        torch.save(kept, saved.with_suffix(".new"))
        os.replace(saved.with_suffix(".new"), saved)
        if stopping:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--state", type=Path, default=Path("build/tiny"), help="state to resume")
    parser.add_argument("--export", type=Path, default=Path("build/tiny-moondream"))
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--vision-steps", type=int, default=Plan.vision_steps)
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes that make pictures")
    parser.add_argument("--score", type=Path, help="only score this exported checkpoint")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.score:
        model, tokenizer = load(args.score)
        print(evaluate(model, Asker(tokenizer, templates(tokenizer)), CROP, 3000, seed=1).summary())
        return
    plan = Plan(seed=args.seed, vision_steps=args.vision_steps, steps=args.steps)
    train(plan, args.state, args.export, args.workers)


if __name__ == "__main__":
    main()
