// Numbers to axes and lines.

/** Values at about `wanted` round distances between two numbers. */
function ticks(low, high, wanted) {
  const rough = (high - low || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: Math.max(0, count) }, (_, index) => (first + index) * step);
}

/** The range of an axis: with zero where that costs little, with room where all values are one. */
function range(values) {
  let low = values.reduce((a, b) => Math.min(a, b), Infinity);
  let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (low > 0 && low < 0.6 * high) low = 0;
  if (low === 0 && high === 0) return [0, 1];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.5, high + (Math.abs(high) || 1) * 0.5];
  const room = 0.04 * (high - low);
  return [low === 0 ? 0 : low - room, high + room];
}

/** The mean of each value and those before it, `width` in all. */
function smoothed(points, width) {
  let sum = 0;
  return points.map(([step, value], index) => {
    sum += value - (index >= width ? points[index - width][1] : 0);
    return [step, sum / Math.min(width, index + 1)];
  });
}

/** The outline of points, drawn with the scales of the axes. */
const pathOf = (points, x, y) =>
  points.map(([step, value], index) => `${index ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");

/** The last point at or before a step: what was known then. */
const pointAt = (points, step) => points.findLast(([at]) => at <= step) ?? null;
