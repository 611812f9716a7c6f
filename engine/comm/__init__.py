"""Communication: the mesh of ranks, their collectives, the wire format of gradients, and agreement on order."""
