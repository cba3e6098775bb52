"""The dense Gram recursion, for networks whose token positions are not alike."""
