"""Many users on one target, over real gRPC, in emulated times: `python -m benchmarks.capacity`."""
