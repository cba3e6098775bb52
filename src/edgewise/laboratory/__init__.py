"""Small exactly solvable models of attention, with their theorems."""
