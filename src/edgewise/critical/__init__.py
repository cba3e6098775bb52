"""Critical settings of a transformer: exponents, phase diagrams, asymptotics, where training is possible."""
