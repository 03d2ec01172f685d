"""Contractions and convolutions for the CPU, and the epilogues that follow them."""
