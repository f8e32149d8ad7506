"""The plugin's step metrics in vLLM's own ``/metrics``.

They are read from the engines' pages (:mod:`vllm_photon.executor.metrics`) when the endpoint is
scraped, under the labels that vLLM's metrics have. With ``--api-server-count`` above one, vLLM
serves a registry of another kind, without custom collectors: the metrics are then missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from vllm_photon.executor.metrics import COUNTERS, GAUGES, MODES, TIMES, read_pages

if TYPE_CHECKING:
    from prometheus_client import Metric
    from vllm.config import VllmConfig

_PREFIX = "vllm:photon_"


class PhotonCollector(Collector):
    """Collects the metrics of one deployment's engines."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        model = vllm_config.model_config
        served = model.served_model_name
        self._model = (served if isinstance(served, str) else served[0]) if served else model.model
        self._vllm_config = vllm_config

    def collect(self) -> Iterator[Metric]:
        """One family for each metric, one sample for each engine."""
        pages = read_pages(self._vllm_config)
        labels = ["model_name", "engine"]
        steps = CounterMetricFamily(
            f"{_PREFIX}steps",
            "Committed steps, by mode; constrained: sampled after the commit before it.",
            labels=[*labels, "mode"],
        )
        for engine, page in pages.items():
            for mode in MODES:
                steps.add_metric([self._model, engine, mode], page.value(f"steps_{mode}"))
        yield steps
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=labels)
            for engine, page in pages.items():
                counter.add_metric([self._model, engine], page.value(name))
            yield counter
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=labels)
            for engine, page in pages.items():
                gauge.add_metric([self._model, engine], page.value(name))
            yield gauge
        for name, text in TIMES.items():
            family = HistogramMetricFamily(f"{_PREFIX}{name}_seconds", text, labels=labels)
            for engine, page in pages.items():
                buckets, total = page.histogram(name)
                family.add_metric([self._model, engine], buckets=buckets, sum_value=total)
            yield family


def serve_metrics(vllm_config: VllmConfig) -> None:
    """Add a deployment's metrics to the process's registry."""
    REGISTRY.register(PhotonCollector(vllm_config))
