"""Region heads: values in and out, and invariant I10."""

from __future__ import annotations

import math

import pytest
import torch

from tests.loading import loaded
from vllm_photon.models.hf_config import Region
from vllm_photon.models.region import RegionHeads
from vllm_photon.spatial.tokens import Coord, Size, SpatialVocab, size_value

VOCAB = SpatialVocab(vocab_size=50)
COORD, SIZE = VOCAB.encode(Coord(9)), VOCAB.encode(Size(1, 2))
CONFIG = Region(dim=16, coord_feat_dim=8, size_feat_dim=12, inner_dim=24)


def random_heads(vocab: SpatialVocab, *, single_layer: bool = False) -> RegionHeads:
    torch.manual_seed(0)
    heads = RegionHeads(CONFIG, vocab, single_layer=single_layer)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return heads.requires_grad_(False)


@pytest.fixture(params=[False, True], ids=["two layers", "one layer"])
def heads(request: pytest.FixtureRequest) -> RegionHeads:
    return loaded(random_heads(VOCAB, single_layer=request.param))


class TextEmbedding:
    """Embeds ordinary ids by row; any other is an error, as in a real embedding (I10)."""

    def __init__(self, dim: int = CONFIG.dim, dtype: torch.dtype = torch.float32) -> None:
        self.rows = torch.randn(VOCAB.vocab_size, dim).to(dtype)
        self.asked = 0

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        self.asked += len(ids)
        return self.rows[ids]


def fourier(values: list[float], frequencies: torch.Tensor) -> torch.Tensor:
    angle = 2 * math.pi * torch.tensor(values) @ frequencies
    return torch.cat((angle.cos(), angle.sin()))


def test_embeds_values(heads: RegionHeads) -> None:
    ids = torch.tensor(
        [3, VOCAB.encode(Coord(0)), VOCAB.encode(Coord(1023)), VOCAB.encode(Size(7, 1000)), 49]
    )
    text = TextEmbedding()
    got = heads.embed(ids, text)
    assert torch.equal(got[[0, 4]], text.rows[[3, 49]])
    for row, bin_ in ((1, 0), (2, 1023)):
        expected = heads.coord_encoder(fourier([bin_ / 1024], heads.coord_features))
        assert torch.allclose(got[row], expected, atol=1e-5)
    expected = heads.size_encoder(fourier([size_value(7), size_value(1000)], heads.size_features))
    assert torch.allclose(got[3], expected, atol=1e-5)


@pytest.mark.parametrize("on_cpu", [True, False], ids=["cpu", "device"])
def test_positions_of_an_image_are_no_error(heads: RegionHeads, on_cpu: bool) -> None:
    ids, text = torch.tensor([VOCAB.image_id, VOCAB.image_id]), TextEmbedding()
    assert torch.isfinite((heads.embed if on_cpu else heads._embed_all)(ids, text)).all()


@pytest.mark.parametrize(
    "ids", [[COORD] * 3, [COORD, SIZE], [SIZE] * 2], ids=["points", "boxes", "sizes"]
)
def test_a_cpu_embeds_no_text_where_there_is_none(heads: RegionHeads, ids: list[int]) -> None:
    text = TextEmbedding()
    got = heads.embed(torch.tensor(ids, dtype=torch.int32), text)
    assert text.asked == 0
    assert torch.allclose(got, heads._embed_all(torch.tensor(ids), text), atol=1e-5)


def test_decodes_only_placeholders(heads: RegionHeads) -> None:
    hidden = torch.randn(4, CONFIG.dim)
    sampled = torch.tensor([[5], [6], [7], [0]], dtype=torch.int32)
    got = heads.decode(hidden, sampled)
    assert got.dtype == torch.int32
    assert got[2:].flatten().tolist() == [7, 0]
    normed = hidden if heads.ln is None else heads.ln(hidden)
    coord = int(heads.coord_decoder(normed[0]).argmax())
    assert VOCAB.decode(int(got[0])) == Coord(coord)
    size = heads.size_decoder(normed[1])
    assert VOCAB.decode(int(got[1])) == Size(int(size[:1024].argmax()), int(size[1024:].argmax()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_device_embeds_as_a_cpu_does(heads: RegionHeads, dtype: torch.dtype) -> None:
    kinds = [0, VOCAB.encode(Coord(0)), VOCAB.encode(Coord(1023)), VOCAB.encode(Size(0, 0))]
    kinds += [VOCAB.encode(Size(1023, 1023)), VOCAB.encode(Size(3, 900)), 49, 20]
    ids = torch.tensor(kinds * 3, dtype=dtype)
    text = TextEmbedding()
    on_cpu, on_device = heads.embed(ids, text), heads._embed_all(ids, text)
    assert torch.allclose(on_device, on_cpu, atol=1e-5)
    assert torch.equal(on_cpu[::8], text.rows[[0, 0, 0]])


def test_a_device_decodes_as_a_cpu_does(heads: RegionHeads) -> None:
    hidden = torch.randn(60, CONFIG.dim)
    sampled = torch.tensor([[5, 6, 7, 0][row % 4] for row in range(60)], dtype=torch.int32)[:, None]
    on_cpu = heads.decode(hidden, sampled)
    if heads.ln is not None:
        hidden = heads.ln(hidden)
    on_device = heads._decode_all(hidden, sampled, sizes=True)
    assert on_device.dtype == on_cpu.dtype
    assert torch.equal(on_device, on_cpu)
    without_sizes = heads._decode_all(hidden, sampled, sizes=False)
    assert torch.equal(without_sizes, torch.where(sampled == 6, sampled, on_cpu))


def test_engine_divisor_changes_what_is_fed(heads: RegionHeads) -> None:
    ids = torch.tensor([VOCAB.encode(Coord(1023))])
    text = TextEmbedding()
    other = loaded(random_heads(SpatialVocab(vocab_size=50, coord_divisor=1023)))
    expected = other.coord_encoder(fourier([1.0], other.coord_features))
    assert torch.allclose(other.embed(ids, text)[0], expected, atol=1e-5)
    assert not torch.allclose(heads.embed(ids, text)[0], expected, atol=1e-3)


def test_embeddings_follow_the_weights_that_the_loader_brings() -> None:
    heads = random_heads(VOCAB)
    heads.coord_encoder = torch.nn.Linear(CONFIG.coord_feat_dim, CONFIG.dim).requires_grad_(False)  # type: ignore[assignment]
    ids, text = torch.tensor([VOCAB.encode(Coord(300))]), TextEmbedding()
    for scale in (1.0, 2.0):
        weights = {name: scale * weight for name, weight in random_heads(VOCAB).named_parameters()}
        assert heads.load_weights(weights.items()) == set(weights)
        features = fourier([300 / 1024], weights["coord_features"])
        expected = weights["coord_encoder.weight"] @ features + weights["coord_encoder.bias"]
        assert torch.allclose(heads.embed(ids, text)[0], expected, atol=1e-4)


def test_bfloat16_weights_tell_neighbouring_bins_apart() -> None:
    """Rounded angles would give neighbours the same embedding, or a wrong turn."""
    torch.manual_seed(0)
    heads = RegionHeads(CONFIG, VOCAB).requires_grad_(False)
    heads.coord_encoder = torch.nn.Identity()  # type: ignore[assignment]
    torch.nn.init.normal_(heads.coord_features, std=30.0)
    frequencies = heads.coord_features.data.bfloat16()
    ids = torch.tensor([VOCAB.encode(Coord(bin_)) for bin_ in (700, 701, 702)])
    embeds = {}
    for dtype in (torch.float32, torch.bfloat16):
        text = TextEmbedding(CONFIG.coord_feat_dim, dtype)
        heads.load_weights([("coord_features", frequencies.to(dtype))])
        embeds[dtype] = heads.to(dtype).embed(ids, text)
    rounded = embeds[torch.bfloat16]
    assert rounded.dtype == torch.bfloat16
    assert torch.allclose(rounded.float(), embeds[torch.float32], atol=0.01)
    assert len({tuple(row.tolist()) for row in rounded}) == 3
