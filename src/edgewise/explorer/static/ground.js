// Color behind a picture: values at the nodes of a grid, smooth between them.
import { clamp, element, ramp } from "./draw.js";

// values[row * columns + column] from below; color(value) is a number from 0 to 1 on the ramp, or null for none.
export function ground(plot, values, columns, rows, color, name = "p") {
  const { left, right, top, bottom } = plot.inner, colors = ramp(name);
  const width = Math.max(2, Math.round(right - left)), height = Math.max(2, Math.round(bottom - top));
  const canvas = element("canvas", { width, height });
  canvas.setAttribute("aria-hidden", "true");
  Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
  const image = new ImageData(width, height), across = steps(width, columns), up = steps(height, rows);
  for (let r = 0; r < height; r++) {
    const [j, t] = up[height - 1 - r];
    for (let c = 0; c < width; c++) {
      const [i, s] = across[c], k = j * columns + i;
      const corners = [values[k], values[k + 1], values[k + columns], values[k + columns + 1]];
      if (corners.includes(null)) continue;
      const value = (1 - t) * ((1 - s) * corners[0] + s * corners[1]) + t * ((1 - s) * corners[2] + s * corners[3]);
      image.data.set([...colors[Math.round(255 * clamp(color(value), 0, 1))], 255], 4 * (r * width + c));
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  plot.box.prepend(canvas);
}

const steps = (pixels, count) => Array.from({ length: pixels }, (_, k) => {
  const at = (k / (pixels - 1)) * (count - 1), below = Math.min(Math.floor(at), count - 2);
  return [below, at - below];
});
