from edgewise.study import Claim
def claim(results):
    return Claim("a", "b", "c", None)
def draw(results):
    from matplotlib.figure import Figure
    return Figure()
