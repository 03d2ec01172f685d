"""From a trace to something that runs: the device, the compiler, the runtime."""
