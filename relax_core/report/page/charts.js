// Line charts; those over updates have a common axis and a common read-out.

const WIDTH = 420;
const HEIGHT = 170;
const FRAME = { left: 46, right: 10, top: 10, bottom: 22 };
const INNER = WIDTH - FRAME.left - FRAME.right;
const FEW = 40; // points that are drawn as dots, and not smoothed
const OVER_UPDATES = ["train", "eval"]; // streams whose steps are updates of the main stage
const charts = [];

/** One figure. A stream that is not over updates has an axis and a read-out of its own. */
class Chart {
  constructor({ title, about, lines }) {
    this.title = title;
    this.overUpdates = OVER_UPDATES.includes(lines[0].stream);
    [this.first, this.last] = domainOf(this.overUpdates ? OVER_UPDATES : [lines[0].stream]);
    this.series = lines.map((line) => ({ ...line, points: pointsOf(line) }));
    const spokenText = spoken(title, this.series);
    const frame = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": spokenText };
    this.drawing = shape("svg", frame);
    this.values = element("div", { class: "values" });
    const caption = element("figcaption", { title: about }, title);
    this.figure = element("figure", { class: "panel", "data-panel": title }, caption, this.values, this.drawing);
    this.listen();
    this.draw();
  }

  /** The step that is read out while the pointer is elsewhere. */
  get chosen() {
    return this.overUpdates ? state.update : this.last;
  }

  x(step) {
    return FRAME.left + ((step - this.first) / (this.last - this.first || 1)) * INNER;
  }

  draw() {
    const [low, high] = range(this.series.flatMap(({ points }) => points.map(([, value]) => value)));
    const bottom = HEIGHT - FRAME.bottom;
    const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - FRAME.top);
    this.cross = shape("line", { class: "cross", y1: FRAME.top, y2: bottom });
    const curves = this.series.flatMap((line, index) => curve(line, index, (step) => this.x(step), y));
    this.drawing.replaceChildren(...this.axes(low, high, y), ...curves, this.cross);
    this.show(this.chosen);
  }

  axes(low, high, y) {
    const across = { class: "grid", x1: FRAME.left, x2: WIDTH - FRAME.right };
    const values = ticks(low, high, 4).flatMap((value) => [
      shape("line", { ...across, y1: y(value), y2: y(value) }),
      shape("text", { x: FRAME.left - 6, y: y(value) + 4, "text-anchor": "end" }, readable(value)),
    ]);
    const steps = ticks(this.first, this.last, 5).filter(Number.isInteger);
    const below = { y: HEIGHT - 6, "text-anchor": "middle" };
    return [...values, ...steps.map((step) => shape("text", { ...below, x: this.x(step) }, String(step)))];
  }

  /** Reads out a step. */
  show(step) {
    this.cross.setAttribute("x1", this.x(step));
    this.cross.setAttribute("x2", this.x(step));
    this.values.replaceChildren(
      ...this.series.map(({ metric, points }, index) => {
        const point = pointAt(points, step);
        const name = this.series.length > 1 ? `${metric.split("/").slice(1).join("/")} ` : "";
        const value = element("b", { "data-metric": metric }, readable(point?.[1]));
        const at = point && point[0] !== step ? ` at ${point[0]}` : "";
        return element("span", { class: `value series-${index % SERIES}` }, name, value, at);
      }),
    );
  }

  listen() {
    const stepAt = ({ clientX }) => {
      const { left, width } = this.drawing.getBoundingClientRect();
      const place = (((clientX - left) / width) * WIDTH - FRAME.left) / INNER;
      return Math.round(this.first + Math.min(1, Math.max(0, place)) * (this.last - this.first));
    };
    const show = (step) => (this.overUpdates ? showAll(step) : this.show(step));
    this.drawing.addEventListener("pointermove", (event) => show(stepAt(event)));
    this.drawing.addEventListener("pointerleave", () => show(this.chosen));
    if (!this.overUpdates) return;
    this.drawing.addEventListener("click", (event) => choose({ update: stepAt(event) }));
    this.drawing.addEventListener("keydown", ({ key }) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[key];
      if (move) choose({ update: Math.min(this.last, Math.max(this.first, state.update + move)) });
    });
  }
}

/** First and last step of some streams. */
function domainOf(streams) {
  const steps = streams.flatMap((stream) => data.series[stream]?.steps ?? []);
  return [Math.min(...steps), Math.max(...steps)];
}

function pointsOf({ stream, metric }) {
  const { steps, metrics } = data.series[stream];
  return steps.map((step, index) => [step, metrics[metric][index]]).filter(([, value]) => value !== null);
}

function spoken(title, series) {
  const point = ([step, value]) => `${readable(value)} at ${step}`;
  const told = series.map(({ metric, points }) => `${metric} from ${point(points[0])} to ${point(points.at(-1))}`);
  return `${title}: ${told.join("; ")}`;
}

function curve({ metric, points }, index, x, y) {
  const color = `series-${index % SERIES}`;
  const width = points.length > FEW ? state.smooth : 1;
  const parts = [
    shape("path", { class: `line ${color}`, "data-metric": metric, d: pathOf(smoothed(points, width), x, y) }),
  ];
  if (width > 1) parts.unshift(shape("path", { class: `line raw ${color}`, d: pathOf(points, x, y) }));
  else if (points.length <= FEW) {
    parts.push(...points.map(([step, value]) => shape("circle", { class: color, cx: x(step), cy: y(value), r: 2.4 })));
  }
  return parts;
}

function showAll(update) {
  byId("chosen-update").textContent = update;
  charts.filter(({ overUpdates }) => overUpdates).forEach((chart) => chart.show(update));
}

function drawCharts() {
  charts.push(...data.panels.map((panel) => new Chart(panel)));
  byId("panels").replaceChildren(...charts.map(({ figure }) => figure));
  if (!charts.length) note("charts-note", "No metrics yet.");
  const thinned = Object.values(data.series).find(({ steps, total }) => total > steps.length);
  if (thinned) note("charts-note", `${thinned.steps.length} of ${thinned.total} steps are shown, at equal distances.`);
  bind("smooth", Number);
  watch(["smooth"], () => charts.forEach((chart) => chart.draw()));
  watch(["update"], () => showAll(state.update));
}
