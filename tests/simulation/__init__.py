"""A deterministic simulator that runs the real node, loop, coordinator and files sink over simulated surroundings."""
