"""A head start: image embeddings with a fixed code, and text weights that can already read it.

Left to itself the model finds where things are quickly, and needs very many samples to find out
that the words of a question name what a patch shows. So the first dims of an image embedding are
taught a code (colour, kind, place, size of the shape seen there), words get the same code for the
colour or kind that they name, and the first head of each layer starts out as one step of the
search: gather the wanted words (layer 0), then look at the patches that match them, or at BOS when
none does, and copy their code (later layers). Training goes on from there with every weight free.
"""

import torch
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.scenes import COLOURS, KINDS
from scripts.tiny.bins import AXIS_FREQUENCY, AXIS_STEP, BINS, axis_bins, coord_loss, size_loss
from scripts.tiny.model import HEAD_DIM, ROPE_DIMS, Attention, Region, TinyMoondream
from scripts.tiny.tasks import ANSWER

PLACES, SIZES = 16, 8  # bumps for a coordinate over [0, 1], and for log2 of a side
SMALLEST, LARGEST = -3.2, -1.0  # log2 of the sides that the bumps span

# Where each part of the code lives in the hidden state.
COLOUR = range(5)
KIND = range(5, 8)
SHOWN, CENTRE = 8, 9
X, Y = range(10, 26), range(26, 42)
W, H = range(42, 50), range(50, 58)
CODE = 58
NAMES, FIRST = 58, 59  # this token names something; this is BOS
WANTED = range(60, 69)  # as COLOUR, KIND, SHOWN, in question tokens
FOUND = range(70, 128)  # as the whole code, of what was found
FED_X, FED_Y = range(128, 144), range(144, 160)  # the value of a fed coordinate
ASK_X, ASK_Y = 160, 161  # an x, or a y, comes next
LAST_X = range(162, 178)  # the newest x that was fed

# Rotary frequency that the search for the newest x uses: falling over a dozen positions.
_NEAR = 3


def _bumps(values: Tensor, low: float, high: float, count: int) -> Tensor:
    """(...) to (..., count): how near each value is to each of `count` even steps."""
    steps = torch.linspace(low, high, count)
    return torch.exp(-0.5 * ((values[..., None] - steps) * (count - 1) / (high - low)) ** 2)


def patch_code(labels: Tensor) -> Tensor:
    """The code (B, N, CODE) of `Batches._patches` labels (B, N, 8); zero where nothing shows."""
    patches = labels.shape[1]
    grid = round(patches**0.5)
    middle = (torch.arange(grid) + 0.5) / grid
    x = labels[..., 3] + middle.repeat(grid)
    y = labels[..., 4] + middle.repeat_interleave(grid)
    shown = labels[..., 0] > 0
    colour = torch.nn.functional.one_hot(labels[..., 0].long(), len(COLOURS) + 1)[..., 1:]
    kind = torch.nn.functional.one_hot(labels[..., 1].long(), len(KINDS) + 1)[..., 1:]
    code = torch.cat(
        [
            colour,
            kind,
            torch.stack([shown, labels[..., 2]], dim=-1),
            _bumps(x, 0, 1, PLACES),
            _bumps(y, 0, 1, PLACES),
            _bumps(labels[..., 5], SMALLEST, LARGEST, SIZES),
            _bumps(labels[..., 6], SMALLEST, LARGEST, SIZES),
        ],
        dim=-1,
    )
    return code * shown[..., None]


@torch.no_grad()
def draw(model: TinyMoondream, tokenizer: Tokenizer) -> None:
    """Write the head start into a freshly made model."""
    text, region = model.text, model.region
    grid = model.vision.grid
    across = _bumps((torch.arange(grid) + 0.5) / grid, 0, 1, PLACES)
    model.vision.pos_emb[0, :, :PLACES] += across.repeat(grid, 1)
    model.vision.pos_emb[0, :, PLACES : 2 * PLACES] += across.repeat_interleave(grid, dim=0)
    text.wte.mul_(0.5)
    text.wte[:, :NAMES].mul_(0.3)
    text.wte[model.bos_id, FIRST] = 1.5
    words = {w: COLOUR[i] for i, w in enumerate(COLOURS)}
    words |= {w: KIND[i] for i, w in enumerate(KINDS)} | {"shape": SHOWN}
    for word, dim in words.items():
        for form in (word, word + "s", " " + word, " " + word + "s"):
            ids = tokenizer.encode(form).ids
            if len(ids) == 1:
                text.wte[ids[0], dim] = 1.0
                text.wte[ids[0], NAMES] = 1.0
    text.wte[ANSWER, ASK_X] = 1.0
    region.size_encoder.bias[ASK_X] = 1.0
    _coordinate_codes(region)
    for block in text.blocks:
        block.attn.proj.weight.mul_(0.5)
        block.mlp.fc2.weight.mul_(0.5)
    _gatherer(text.blocks[0].attn)
    for block in text.blocks[1:]:
        _finder(block.attn)


def _coordinate_codes(region: Region) -> None:
    """Fed coordinates show their value and their axis.

    Both axes share one encoder and a sequence alone hardly tells which one a value is of, so x is
    always answered on bins that are multiples of 8, and y half-way between them: the high
    frequencies tell them apart.
    """
    low = torch.arange(40) * 0.5
    tuned = torch.cat([low, AXIS_FREQUENCY + low, AXIS_FREQUENCY - low[1:]])
    region.coord_features[0, : len(tuned)] = tuned
    index = torch.arange(0, BINS, AXIS_STEP // 2)
    values, is_x = index / BINS, (index % AXIS_STEP == 0).float()[:, None]
    angles = 2 * torch.pi * values[:, None] * region.coord_features
    inputs = torch.cat([angles.cos(), angles.sin(), torch.ones(len(values), 1)], dim=-1)
    bumps = _bumps(values, 0, 1, PLACES)
    wanted = torch.cat([bumps * is_x, bumps * (1 - is_x), 1 - is_x, is_x], dim=-1)
    ridge = 1e-2 * torch.eye(inputs.shape[1])
    fit = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ wanted)
    region.coord_encoder.weight[FED_X.start : ASK_Y + 1] = fit[:-1].T
    region.coord_encoder.bias[FED_X.start : ASK_Y + 1] = fit[-1]


def _clear(attn: Attention) -> tuple[Tensor, Tensor, Tensor]:
    """Blank the first head's unrotated queries and keys, values and output; q, k, v weights."""
    q, k, v = attn.qkv.weight.chunk(3)
    for part in (q, k):
        part[ROPE_DIMS:HEAD_DIM] = 0
        part[:ROPE_DIMS] *= 0.3
    v[:HEAD_DIM] = 0
    attn.proj.weight[:, :HEAD_DIM] = 0
    return q, k, v


def _gatherer(attn: Attention) -> None:
    """Every token looks at the naming words before it, and keeps what they name as WANTED.

    A second head looks at the newest fed x, and keeps it as LAST_X.
    """
    _, k, v = _clear(attn)
    attn.qkv.bias[ROPE_DIMS] = 2.2
    k[ROPE_DIMS, NAMES] = 2.2
    for i, dim in enumerate((*COLOUR, *KIND, SHOWN)):
        v[i, dim] = 1.0
        attn.proj.weight[WANTED[i], i] = 0.15
    second = slice(HEAD_DIM, 2 * HEAD_DIM)
    for part in attn.qkv.weight.chunk(3):
        part[second] = 0
    attn.proj.weight[:, second] = 0
    attn.qkv.bias[HEAD_DIM + _NEAR] = 6.0
    k[HEAD_DIM + _NEAR, ASK_Y] = 6.0
    for i in range(PLACES):
        v[HEAD_DIM + i, FED_X[i]] = 1.0
        attn.proj.weight[LAST_X[i], HEAD_DIM + i] = 0.12


def _finder(attn: Attention) -> None:
    """Look at the patches with the wanted code; copy their code to FOUND.

    Prefers left, shuns what is not right of the newest x, unless that has just been fed: then its
    y is asked for, and the patch is the same one.
    """
    q, k, v = _clear(attn)
    for i, dim in enumerate((*COLOUR, *KIND, SHOWN)):
        q[ROPE_DIMS + i, WANTED[i]] = 1.5
        k[ROPE_DIMS + i, dim] = 1.5
    bos = ROPE_DIMS + 9
    attn.qkv.bias[bos] = 2.5
    k[bos, FIRST] = 2.5
    last = torch.arange(PLACES)
    for i, dim in enumerate(X):
        row = bos + 1 + i
        k[row, dim] = 1.2
        attn.qkv.bias[row] = 2.5 * (1 - i / (PLACES - 1)) - 1.25
        q[row, LAST_X.start : LAST_X.stop] = -1.3 * torch.sigmoid(2 * (last - i + 0.5))
        q[row, FED_X[i]] = 2.0
    for dim in range(CODE):
        v[dim, dim] = 1.0
        attn.proj.weight[FOUND[dim], dim] = 0.12


def warm_decoders(region: Region, steps: int) -> None:
    """Teach both decoders to read a FOUND code, on made-up hidden states."""
    params = [*region.coord_decoder.parameters(), *region.size_decoder.parameters()]
    opt = torch.optim.Adam(params, lr=3e-3)
    dim = region.coord_encoder.out_features
    for step in range(steps):
        opt.param_groups[0]["lr"] = 3e-3 * (1 - step / steps)
        x, y = torch.rand(2, 256)
        w, h = torch.rand(2, 256) * (LARGEST - SMALLEST) + SMALLEST
        axis = torch.randint(0, 2, (256,))
        hidden = torch.randn(256, dim) * 0.2
        code = torch.cat(
            [
                _bumps(x, 0, 1, PLACES),
                _bumps(y, 0, 1, PLACES),
                _bumps(w, SMALLEST, LARGEST, SIZES),
                _bumps(h, SMALLEST, LARGEST, SIZES),
            ],
            dim=-1,
        )
        code = (code + torch.randn_like(code) * 0.05) * (0.6 + 0.6 * torch.rand(256, 1))
        hidden[:, FOUND[X.start] : FOUND[-1] + 1] = code
        hidden[:, ASK_X] += 1 - axis
        hidden[:, ASK_Y] += axis
        place = torch.where(axis == 0, axis_bins(x, 0), axis_bins(y, 1))
        sizes = ((torch.stack([w, h], 1) + 10) / 10 * (BINS - 1)).round().long()
        loss = coord_loss(region.coord_decoder(hidden), place)
        read = region.size_decoder(hidden).unflatten(-1, (2, BINS)).flatten(0, 1)
        loss = loss + size_loss(read, sizes.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"decoders warmed up to {loss.item():.3f}", flush=True)
