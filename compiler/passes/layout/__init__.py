"""Passes that choose memory layouts of tensors, and move ops that only change layouts.

assign_layout        convolutions, and all that stands between them, from channels first to channels last
narrow_positions     positions of maxima that only their gradient reads count from the window, in a byte, rather
                     than from the plane
narrow_sums          sums by index that come from halves and are rounded to halves are stored as halves
sink_concatenations  concatenations move behind the elementwise ops that follow: these compute the parts
sink_reshapes        reshapes that split dimensions move behind the ops that follow, until they meet one that
                     undoes them
"""
