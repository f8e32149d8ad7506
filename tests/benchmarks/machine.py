"""What the report tests say that they ran on."""

MACHINE = {
    "cpu": "test",
    "cores": 2,
    "memory_gib": 8.0,
    "vllm": "0",
    "torch": "0",
    "python": "3",
    "time": "now",
    "load_average": 0.0,
}
