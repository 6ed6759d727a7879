"""How a job is repaired: the cheapest strategy that applies."""
