"""Train the tiny Moondream 2 that is shipped with the project, on synthetic pictures.

Two stages, counted in steps: first the vision tower alone learns what each patch shows (cheap,
dense labels), then everything learns to answer, with many questions packed behind each picture.
Every batch is a function of the seed and the step, and the state is saved often, so a run can be
stopped and continued. The exported checkpoint holds the averaged weights.

    python -m scripts.train_tiny --state run/ --export vllm_photon/assets/tiny-moondream
"""

import argparse
import copy
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.scenes import COLOURS, KINDS
from scripts.tiny.blueprint import draw, warm_decoders
from scripts.tiny.data import Batches
from scripts.tiny.evaluate import evaluate
from scripts.tiny.export import CROP, PATCH, export, load, model_config
from scripts.tiny.losses import answer_loss, code_loss, patch_loss
from scripts.tiny.model import PatchHeads, TinyMoondream
from scripts.tiny.muon import Muon
from scripts.tiny.tasks import Asker
from scripts.tiny.vocabulary import build_tokenizer, templates


@dataclass(frozen=True)
class Plan:
    """How long each stage is and how big its batches are; `small` is a toy model for tests."""

    seed: int = 1
    vision_steps: int = 1000
    vision_batch: int = 32
    steps: int = 2000
    batch: int = 16
    tokens: int = 128
    lr: float = 2e-3
    warmup: int = 200
    decay: float = 0.3
    average: float = 0.995
    vision_scale: float = 0.2
    every: int = 250
    warm_steps: int = 600
    small: bool = False

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


def optimizers(trainee: Trainee, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for everything else; `scale` of a group slows it.

    The frequencies of coordinates stay as they were tuned.
    """
    trainee.model.region.coord_features.requires_grad_(False)
    sides: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    eyes: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, p in trainee.named_parameters():
        if p.requires_grad:
            seeing = name.startswith("model.vision") and "proj_mlp" not in name
            (eyes if seeing else sides)[".blocks." in name and p.ndim == 2].append(p)

    def groups(matrix: bool) -> list[dict[str, Any]]:
        return [
            {"params": sides[matrix], "scale": 1.0},
            {"params": eyes[matrix], "scale": plan.vision_scale},
        ]

    return [
        Muon(groups(True), plan.lr),
        torch.optim.AdamW(groups(False), lr=plan.lr, weight_decay=0.01, betas=(0.9, 0.98)),
    ]


def batches(plan: Plan, asker: Asker, start: int, workers: int) -> Iterator[dict[str, Tensor]]:
    """One batch a step, from `start` to the end of the plan."""
    total = plan.vision_steps + plan.steps
    stages = (
        (0, plan.vision_steps, plan.vision_batch, 0),
        (plan.vision_steps, total, plan.batch, plan.tokens),
    )
    for first, last, batch, tokens in stages:
        data = Batches(asker, plan.seed, total, batch, tokens, CROP, PATCH)
        todo = range(max(first, start), last)
        yield from DataLoader(data, batch_size=None, sampler=todo, num_workers=workers)


class Run:
    """A plan under way: weights, their average, optimizers and the step, kept in one file."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        torch.manual_seed(plan.seed)
        self.plan = plan
        self.tokenizer = build_tokenizer()
        self.asker = Asker(self.tokenizer, templates(self.tokenizer))
        self.config = model_config(self.tokenizer, plan.small)
        self.trainee = Trainee(TinyMoondream(self.config))
        self.average = copy.deepcopy(self.trainee.model)
        self.opts = optimizers(self.trainee, plan)
        self.step, self.best = 0, -1.0
        folder.mkdir(parents=True, exist_ok=True)
        self.saved = folder / "state.pt"
        if self.saved.exists():
            self._load()
        else:
            draw(self.trainee.model, self.tokenizer)
            warm_decoders(self.trainee.model.region, plan.warm_steps)
            self.average.load_state_dict(self.trainee.model.state_dict())

    def _load(self) -> None:
        kept = torch.load(self.saved, weights_only=True)
        self.trainee.load_state_dict(kept["trainee"])
        self.average.load_state_dict(kept["average"])
        for opt, state in zip(self.opts, kept["opts"], strict=True):
            opt.load_state_dict(state)
        self.step, self.best = kept["step"], kept["best"]

    def save(self) -> None:
        kept = {
            "trainee": self.trainee.state_dict(),
            "average": self.average.state_dict(),
            "opts": [opt.state_dict() for opt in self.opts],
            "step": self.step,
            "best": self.best,
        }
        torch.save(kept, self.saved.with_suffix(".new"))
        os.replace(self.saved.with_suffix(".new"), self.saved)

    def learn(self, batch: dict[str, Tensor]) -> float:
        """One step; returns the loss."""
        answering = self.step >= self.plan.vision_steps
        for opt in self.opts:
            for group in opt.param_groups:
                slow = group["scale"] if answering else 1.0
                group["lr"] = slow * self.plan.rate(self.step)
        with torch.autocast("cpu", torch.bfloat16):
            pixels = batch["pixels"].float() / 127.5 - 1
            features = self.trainee.model.vision.encode(pixels)
            image = self.trainee.model.vision.project(features)
            loss = patch_loss(self.trainee.patches, features, batch["patches"])
            loss = loss + code_loss(image, batch["patches"])
            if answering:
                loss = 0.3 * loss + answer_loss(self.trainee.model, image, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.trainee.parameters(), 1.0)
        for opt in self.opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        self.step += 1
        keep = min(self.plan.average, self.step / (self.step + 9))
        with torch.no_grad():
            for a, p in zip(
                self.average.parameters(), self.trainee.model.parameters(), strict=True
            ):
                a.lerp_(p, 1 - keep)
        return loss.item()

    def score(self, target: Path) -> None:
        """Score the averaged weights on held-out questions; export them if they are the best."""
        with torch.autocast("cpu", torch.bfloat16):
            figures = evaluate(self.average, self.asker, CROP, 384, seed=0).summary()
        print(f"{self.step} held out {figures}", flush=True)
        merit = sum(value for name, value in figures.items() if name != "point_error")
        if merit > self.best:
            self.best = merit
            self.export(target)

    def export(self, target: Path) -> None:
        """Write the averaged weights as a checkpoint folder."""
        export(self.average.state_dict(), self.config, self.tokenizer, target)


def train(plan: Plan, state: Path, target: Path, workers: int) -> None:
    """Run, or continue, the plan; SIGTERM saves and stops."""
    run = Run(plan, state)
    size = sum(p.numel() for p in run.trainee.model.parameters())
    print(f"{size / 1e6:.2f} M parameters, from step {run.step}", flush=True)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    began, first, running = time.monotonic(), run.step, 0.0
    for batch in batches(plan, run.asker, run.step, workers):
        running += run.learn(batch)
        if run.step % 50 == 0:
            pace = (run.step - first) / (time.monotonic() - began)
            print(f"{run.step} loss {running / 50:.4f} {pace:.2f} steps/s", flush=True)
            running = 0.0
        due = run.step % plan.every == 0 or run.step == plan.vision_steps + plan.steps
        if due and run.step > plan.vision_steps:
            run.score(target)
        if due or stopping:
            run.save()
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
