"""What a caller holds: a write under way, and what came of it."""
