"""The simplex recursion, for networks whose tokens are all alike."""
