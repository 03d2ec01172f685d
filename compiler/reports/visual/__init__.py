"""Drawings of programs: pages and pictures that are one file and need no network."""
