"""Communication: the mesh of ranks, their collectives, the format in which gradients travel, and agreement on order."""
