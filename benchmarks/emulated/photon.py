"""Photon's worker on the virtual device."""

from benchmarks.emulated.runner import EmulatedWorker
from vllm_photon.worker import PhotonWorker


class PhotonEmulatedWorker(EmulatedWorker, PhotonWorker):
    """For `worker_cls`. Outputs are ready when the device says so, not when the step returns."""

    outputs_ready_at_return = False
