"""What many ranks do together, as data: the order of a pipeline's micro-batches, and the time that a step takes.

network       seconds and bytes of a collective over the ranks of a mesh axis
pipeline      action lists of pipeline schedules: GPipe, 1F1B, interleaved 1F1B, zero bubble
program_events  the events of one rank's program, from its IR
simulator     an event simulation of the programs of all ranks: spans, exposed communication, bubble
"""
