"""The worker: vLLM's own for the platform, plus the finalize stage."""

from vllm_photon.worker.worker import PhotonWorker

__all__ = ["PhotonWorker"]
