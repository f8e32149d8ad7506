"""vLLM's CPU worker on the virtual device."""

from vllm.v1.worker.cpu_worker import CPUWorker

from benchmarks.emulated.runner import EmulatedWorker


class StockEmulatedWorker(EmulatedWorker, CPUWorker):
    """For `worker_cls`."""
