"""Description to Trace by three recursions at infinite width: simplex, Gram matrix, perceptron."""
