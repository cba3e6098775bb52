"""Before a training: facts that must hold in any healthy one, checked on the user's own objects."""
