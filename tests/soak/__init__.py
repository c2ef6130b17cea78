"""Dozens of light nodes on real stores, under kills, pauses, restarts and a bad network, judged from the history."""
