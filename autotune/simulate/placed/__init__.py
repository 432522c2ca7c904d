"""Steps of plans that place groups of ops, and their lower bound."""
