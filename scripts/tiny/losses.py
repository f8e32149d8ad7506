"""What the tiny model is trained on: patches, their code, answers, and where to look for them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.tiny.bins import BINS, coord_loss, size_loss
from scripts.tiny.blueprint import CODE, patch_code
from scripts.tiny.model import PatchHeads, TinyMoondream
from scripts.tiny.tasks import NOWHERE

# One head of these layers is taught where to look.
GUIDED_LAYERS, GUIDE_WEIGHT = (1, 2), 0.3


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


def code_loss(image: Tensor, labels: Tensor) -> Tensor:
    """How far the image embeddings (B, N, dim) are from the code of what they show."""
    shown = labels[..., 0] > 0
    gap = ((image[..., :CODE].float() - patch_code(labels)) ** 2).sum(-1)
    rest = (image[..., CODE:].float() ** 2).mean()
    return gap[shown].mean() + 0.5 * gap[~shown].mean() + 0.5 * rest


def answer_loss(model: TinyMoondream, image: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Token, coordinate and size losses of every packed question."""
    cache = model.prefix(image)
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
    loss = loss + coord_loss(coords, batch["coord_target"][placed])
    sized = batch["size_target"][..., 0] >= 0
    sizes = model.region.size_decoder(hidden[sized]).unflatten(-1, (2, BINS))
    sides = size_loss(sizes.flatten(0, 1), batch["size_target"][sized].flatten())
    loss = loss + 0.5 * sides
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
