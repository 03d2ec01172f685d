"""Models of distributed steps: pipeline schedules, costs of collectives, simulation of a step on many ranks.

network         the cost model of collectives over the ranks of a mesh axis: seconds and bytes
pipeline        pipeline schedules: GPipe, 1F1B, interleaved 1F1B, zero bubble
program_events  the events of one rank's program, from its IR
simulator       an event simulation of all ranks: exposed communication, pipeline bubble
"""
