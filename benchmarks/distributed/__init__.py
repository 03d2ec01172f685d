"""Steps on several ranks of this machine beside PyTorch's own: `python -m benchmarks distributed --help`.

main          the command line, turns of the ways, the tables
ways          who runs the step, and how the model is divided
turns         the processes of a way's ranks, and requests to them
clocks        time, and processor time
ranks         the process of one rank: answers requests
links         what Gloo takes for collectives, and the network that follows from it
prediction    the simulated step of a way, from the programs of its ranks
stage_events  the events of a pipeline
plans         steps on H100s, simulated: GPT-2 under ZeRO, and Llama 3 8B beside torchtitan's published figures
"""

from __future__ import annotations

from benchmarks.distributed.main import main

__all__ = ["main"]
