"""`watch`: rows of a training run at a stated price, and alarms that name the first cause."""
