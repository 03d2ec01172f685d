"""Passes that choose memory layouts of tensors, and move ops that only change layouts.

assign_layout        convolutions, and the ops between them, from channels first to channels last
narrow_positions     positions of maxima that only their gradient reads are stored in a byte, relative to the window
narrow_sums          sums by index of half-precision values that are rounded to half precision are stored in it
sink_concatenations  concatenations move below the elementwise ops that read them, which then compute the operands
sink_reshapes        reshapes that split dimensions move below the ops that read them, to a reshape that joins
                     these dimensions
"""
