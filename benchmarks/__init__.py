"""Measurements of photon against stock vLLM: an A/B over servers and an emulated device."""
