"""Answers as points, boxes and outlines, read from ids or JSON, in pixels, drawn on a picture.

Nothing here needs vLLM or torch.
"""

from vllm_photon.spatial.answers import Answer, parse, parse_ids
from vllm_photon.spatial.drawing import draw
from vllm_photon.spatial.shapes import Box, Point

__all__ = ["Answer", "Box", "Point", "draw", "parse", "parse_ids"]
