"""Mixed precision: the pass, and its rules of which ops run in half precision and where values are rounded.

amp     mixed precision: runs contractions in half precision, and computes all other ops in float32
decide  which ops run in half precision, and which float32 values are rounded where they are produced
"""
