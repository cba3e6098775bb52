"""Where theory meets stability: asymptotics, phase diagrams, critical settings."""
