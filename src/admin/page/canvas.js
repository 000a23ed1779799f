// Canvases as sharp as the screen.

import { variable } from "./colors.js";

/** The context of a canvas of this size in CSS pixels, filled with a colour of the style sheet. */
export function cleared(canvas, width, height, background) {
  const ratio = devicePixelRatio || 1;
  const size = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = variable(background);
  context.fillRect(0, 0, width, height);
  return context;
}
