"""The model runner on the virtual device: real batches and sampling, no forward."""

from dataclasses import asdict
from typing import Any

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from benchmarks.emulated.device import DeviceTimes, VirtualDevice, sleep_until


class DeviceOutput(AsyncModelRunnerOutput):
    """A step's output, on the host only once the device has finished the step."""

    def __init__(self, output: AsyncModelRunnerOutput, ready_at: float) -> None:
        self._output = output
        self._ready_at = ready_at

    def get_output(self) -> ModelRunnerOutput:
        sleep_until(self._ready_at)
        return self._output.get_output()


class EmulatedRunner:
    """Mixed into a CPU model runner in front of its own class.

    The host waits where it would with an accelerator: when it copies the sampled ids in a blocking
    step, and when it asks for an asynchronous output. Every logit is zero, so the lowest allowed
    id is sampled.
    """

    device_model: VirtualDevice

    def attach(self, device_model: VirtualDevice) -> None:
        """Call after load_model."""
        config = self.model_config  # type: ignore[attr-defined]
        batch = self.max_num_tokens  # type: ignore[attr-defined]
        self.device_model = device_model
        self._hidden = torch.zeros(batch, config.get_hidden_size(), dtype=config.dtype)
        self._logits = torch.zeros(
            self.max_num_reqs,  # type: ignore[attr-defined]
            config.get_vocab_size(),
            dtype=config.dtype,
        )
        self.model.compute_logits = self._launch_logits  # type: ignore[attr-defined]

    def _launch_logits(self, hidden: torch.Tensor, *_: Any) -> torch.Tensor:
        return self._logits[: hidden.shape[0]]

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor:
        assert positions is not None
        rows = positions.shape[-1]
        self.device_model.enqueue_forward(rows)
        return self._hidden[:rows]

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        sampled = super()._sample(*args, **kwargs)  # type: ignore[misc]
        self.device_model.enqueue_sampling()
        return sampled

    def _to_list(self, sampled_token_ids: torch.Tensor) -> list[list[int]]:
        sleep_until(self.device_model.free_at)
        return super()._to_list(sampled_token_ids)  # type: ignore[misc]

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)  # type: ignore[misc]
        if isinstance(output, AsyncModelRunnerOutput):
            return DeviceOutput(output, self.device_model.free_at)
        return output


class EmulatedWorker:
    """Mixed into a CPU worker in front of its own class: swaps the runner, takes remote calls."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        runner = self.model_runner  # type: ignore[attr-defined]
        kind = type(runner)
        runner.__class__ = type(f"Emulated{kind.__name__}", (EmulatedRunner, kind), {})
        self.device_model = VirtualDevice(DeviceTimes(0.0, 0.0))
        runner.attach(self.device_model)

    def set_device_times(self, forward_ms: float, sampling_ms: float) -> None:
        self.device_model.times = DeviceTimes(forward_ms, sampling_ms)

    def take_device_log(self) -> list[dict[str, float]]:
        """The steps since the last call, as the fields of DeviceStep."""
        return [asdict(step) for step in self.device_model.take_log()]

    def effective_mode(self) -> str:
        """What the model runner itself does, whatever the configuration says."""
        pipelined = self.model_runner.use_async_scheduling  # type: ignore[attr-defined]
        return "pipelined" if pipelined else "blocking"
