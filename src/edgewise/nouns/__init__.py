"""The nouns of the library: Architecture, Perceptron, Trace, Verdict, Card, Sheet."""
