// Line charts with a common axis of updates and a common read-out.

const WIDTH = 420, HEIGHT = 170;
const FRAME = { left: 46, right: 10, top: 10, bottom: 22 };
const FEW = 40; // points that are drawn as dots as well
const charts = [];

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
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.5, high + (Math.abs(high) || 1) * 0.5];
  const room = 0.04 * (high - low);
  return [low === 0 ? 0 : low - room, high + room];
}

function pointsOf({ stream, metric }) {
  const { steps, metrics } = data.series[stream];
  return steps.map((step, index) => [step, metrics[metric][index]]).filter(([, value]) => value !== null);
}

/** The mean of each value and those before it, `width` in all. */
function smoothed(points, width) {
  let sum = 0;
  return points.map(([step, value], index) => {
    sum += value - (index >= width ? points[index - width][1] : 0);
    return [step, sum / Math.min(width, index + 1)];
  });
}

const pathOf = (points, x, y) =>
  points.map(([step, value], index) => `${index ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");

/** A point at or before an update: what was known then. */
const pointAt = (points, update) => points.findLast(([step]) => step <= update) ?? null;

/** Draws a chart into a new figure. `domain` are the first and last step. */
function chart({ title, about, lines }, domain) {
  const series = lines.map((line) => ({ ...line, points: pointsOf(line) })).filter(({ points }) => points.length);
  const drawing = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": spoken(title, series) });
  const legend = element("div", { class: "values" });
  const figure = element("figure", { class: "panel", "data-panel": title }, element("figcaption", { title: about }, title), legend, drawing);
  const [first, last] = domain;
  const x = (step) => FRAME.left + ((step - first) / (last - first || 1)) * (WIDTH - FRAME.left - FRAME.right);
  const made = { figure, show: () => {}, draw: () => {} };
  made.draw = () => {
    const y = axes(drawing, x, domain, range(series.flatMap(({ points }) => points.map(([, value]) => value))));
    series.forEach((line, index) => drawing.append(...curve(line, index, x, y)));
    const cross = shape("line", { class: "cross", y1: FRAME.top, y2: HEIGHT - FRAME.bottom });
    drawing.append(cross);
    made.show = (update) => readOut(series, legend, cross, x, update);
    made.show(state.update);
  };
  listen(drawing, domain);
  charts.push(made);
  made.draw();
  return made;
}

function spoken(title, series) {
  const told = series.map(({ metric, points }) =>
    `${metric} from ${readable(points[0][1])} at ${points[0][0]} to ${readable(points.at(-1)[1])} at ${points.at(-1)[0]}`);
  return `${title}: ${told.join("; ")}`;
}

function axes(drawing, x, [first, last], [low, high]) {
  const y = (value) => HEIGHT - FRAME.bottom - ((value - low) / (high - low)) * (HEIGHT - FRAME.top - FRAME.bottom);
  drawing.replaceChildren();
  for (const value of ticks(low, high, 3)) {
    drawing.append(
      shape("line", { class: "grid", x1: FRAME.left, x2: WIDTH - FRAME.right, y1: y(value), y2: y(value) }),
      shape("text", { x: FRAME.left - 6, y: y(value) + 4, "text-anchor": "end" }, readable(value)),
    );
  }
  for (const step of ticks(first, last, 5).filter(Number.isInteger)) {
    drawing.append(shape("text", { x: x(step), y: HEIGHT - 6, "text-anchor": "middle" }, String(step)));
  }
  return y;
}

function curve({ metric, points }, index, x, y) {
  const color = `series-${index % 6}`;
  const width = Number(state.smooth);
  const parts = [shape("path", { class: `line ${color}`, "data-metric": metric, d: pathOf(smoothed(points, width), x, y) })];
  if (width > 1) parts.unshift(shape("path", { class: `line raw ${color}`, d: pathOf(points, x, y) }));
  else if (points.length <= FEW) {
    parts.push(...points.map(([step, value]) => shape("circle", { class: color, cx: x(step), cy: y(value), r: 2.4 })));
  }
  return parts;
}

function readOut(series, legend, cross, x, update) {
  legend.replaceChildren(...series.map(({ metric, points }, index) => {
    const point = pointAt(points, update);
    const name = series.length > 1 ? `${metric.split("/").slice(1).join("/")} ` : "";
    const at = point && point[0] !== update ? ` at ${point[0]}` : "";
    return element("span", { class: `value series-${index % 6}` }, name,
      element("b", { "data-metric": metric }, readable(point?.[1])), at);
  }));
  cross.setAttribute("x1", x(update));
  cross.setAttribute("x2", x(update));
}

function listen(drawing, [first, last]) {
  const stepAt = (event) => {
    const box = drawing.getBoundingClientRect();
    const place = (((event.clientX - box.left) / box.width) * WIDTH - FRAME.left) / (WIDTH - FRAME.left - FRAME.right);
    return Math.round(first + Math.min(1, Math.max(0, place)) * (last - first));
  };
  drawing.addEventListener("pointermove", (event) => showAll(stepAt(event)));
  drawing.addEventListener("pointerleave", () => showAll(state.update));
  drawing.addEventListener("click", (event) => choose({ update: stepAt(event) }));
  drawing.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) choose({ update: Math.min(last, Math.max(first, state.update + move)) });
  });
}

function showAll(update) {
  byId("chosen-update").textContent = update;
  charts.forEach((one) => one.show(update));
}

/** First and last step of some streams. */
function domainOf(streams) {
  const steps = streams.filter((stream) => stream in data.series).flatMap((stream) => data.series[stream].steps);
  return [Math.min(...steps), Math.max(...steps)];
}

function drawCharts() {
  const updates = domainOf(["train", "eval"]);
  byId("panels").replaceChildren(...data.panels.map((panel) => chart(panel, updates).figure));
  if (!data.panels.length) note("charts-note", "No metrics yet.");
  const thinned = Object.values(data.series).find(({ steps, total }) => total > steps.length);
  if (thinned) note("charts-note", `${thinned.steps.length} of ${thinned.total} steps are shown, at equal distances.`);
  bind("smooth", Number);
  watch(["smooth"], () => charts.forEach((one) => one.draw()));
  watch(["update"], () => showAll(state.update));
  offerMetrics();
}

/** The picker of every metric of every stream; a stream other than these two has steps of its own. */
function offerMetrics() {
  const all = Object.entries(data.series).flatMap(([stream, { metrics }]) =>
    Object.keys(metrics).map((metric) => ({ stream, metric, title: stream === "train" ? metric : `${stream}: ${metric}` })));
  byId("all-metrics").hidden = !all.length;
  byId("all-metrics").querySelector("summary").textContent = `All metrics (${all.length})`;
  const choices = all.map((line) => {
    const box = element("input", { type: "checkbox" });
    box.addEventListener("change", () => (box.checked ? add(line) : remove(line)));
    return element("label", { "data-title": line.title }, box, ` ${line.title}`);
  });
  const add = (line) => {
    const domain = domainOf(["train", "eval"].includes(line.stream) ? ["train", "eval"] : [line.stream]);
    byId("more-panels").append(chart({ title: line.title, about: "", lines: [line] }, domain).figure);
  };
  const remove = ({ title }) => {
    const place = charts.findLastIndex(({ figure }) => figure.dataset.panel === title);
    charts.splice(place, 1)[0].figure.remove();
  };
  byId("metric-choices").replaceChildren(...choices);
  byId("metric-search").addEventListener("input", (event) => {
    for (const choice of choices) choice.hidden = !choice.dataset.title.includes(event.target.value);
  });
}
