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
CONFIG = Region(dim=16, coord_feat_dim=8, size_feat_dim=12, inner_dim=24)


@pytest.fixture(params=[False, True], ids=["two layers", "one layer"])
def heads(request: pytest.FixtureRequest) -> RegionHeads:
    torch.manual_seed(0)
    heads = RegionHeads(CONFIG, VOCAB, single_layer=request.param)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return loaded(heads.requires_grad_(False))


def fourier(values: list[float], frequencies: torch.Tensor) -> torch.Tensor:
    angle = 2 * math.pi * torch.tensor(values) @ frequencies
    return torch.cat((angle.cos(), angle.sin()))


def test_embeds_values(heads: RegionHeads) -> None:
    ids = torch.tensor(
        [3, VOCAB.encode(Coord(0)), VOCAB.encode(Coord(1023)), VOCAB.encode(Size(7, 1000)), 49]
    )
    text = torch.randn(len(ids), CONFIG.dim)
    got = heads.embed(ids, text)
    assert torch.equal(got[[0, 4]], text[[0, 4]])
    for row, bin_ in ((1, 0), (2, 1023)):
        expected = heads.coord_encoder(fourier([bin_ / 1024], heads.coord_features))
        assert torch.allclose(got[row], expected, atol=1e-5)
    expected = heads.size_encoder(fourier([size_value(7), size_value(1000)], heads.size_features))
    assert torch.allclose(got[3], expected, atol=1e-5)


def test_every_position_of_an_image_keeps_its_embedding(heads: RegionHeads) -> None:
    ids = torch.tensor([VOCAB.image_id, VOCAB.image_id])
    text = torch.randn(2, CONFIG.dim)
    assert torch.equal(heads.embed(ids, text), text)


def test_decodes_only_placeholders(heads: RegionHeads) -> None:
    hidden = torch.randn(4, CONFIG.dim)
    sampled = torch.tensor([[5], [6], [7], [0]], dtype=torch.int32)
    got = heads.decode(hidden, sampled)
    assert got.dtype == torch.int32
    assert got[2:].flatten().tolist() == [7, 0]
    normed = heads.ln(hidden)
    coord = int(heads.coord_decoder(normed[0]).argmax())
    assert VOCAB.decode(int(got[0])) == Coord(coord)
    size = heads.size_decoder(normed[1])
    assert VOCAB.decode(int(got[1])) == Size(int(size[:1024].argmax()), int(size[1024:].argmax()))


def test_engine_divisor_changes_what_is_fed(heads: RegionHeads) -> None:
    ids = torch.tensor([VOCAB.encode(Coord(1023))])
    text = torch.zeros(1, CONFIG.dim)
    before = heads.embed(ids, text)
    heads.vocab = SpatialVocab(vocab_size=50, coord_divisor=1023)
    expected = heads.coord_encoder(fourier([1.0], heads.coord_features))
    assert torch.allclose(heads.embed(ids, text)[0], expected, atol=1e-5)
    assert not torch.allclose(before[0], expected, atol=1e-3)


def test_bfloat16_weights_tell_neighbouring_bins_apart() -> None:
    """Rounded angles would give neighbours the same embedding, or a wrong turn."""
    heads = RegionHeads(CONFIG, VOCAB).requires_grad_(False)
    torch.manual_seed(0)
    torch.nn.init.normal_(heads.coord_features, std=30.0)
    heads.coord_features.data = heads.coord_features.data.bfloat16().float()
    heads.coord_encoder = torch.nn.Identity()  # type: ignore[assignment]
    ids = torch.tensor([VOCAB.encode(Coord(bin_)) for bin_ in (700, 701, 702)])
    text = torch.zeros(3, CONFIG.coord_feat_dim)
    heads.size_encoder = torch.nn.Linear(CONFIG.size_feat_dim, CONFIG.coord_feat_dim)  # type: ignore[assignment]
    exact = heads.embed(ids, text)
    rounded = heads.bfloat16().embed(ids, text.bfloat16())
    assert rounded.dtype == torch.bfloat16
    assert torch.allclose(rounded.float(), exact, atol=0.01)
    assert len({tuple(row.tolist()) for row in rounded}) == 3
