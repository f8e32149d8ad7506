"""A virtual accelerator under the real engine: device work takes time, the host only enqueues."""
