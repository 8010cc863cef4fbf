"""What the heads of a Transformer do: density, diversity, roles."""
