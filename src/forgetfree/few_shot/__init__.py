"""Few-shot class-incremental learning: one large session teaches the network, later ones bring a few images a class."""
