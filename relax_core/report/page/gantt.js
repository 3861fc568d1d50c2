// A row for each role or process, in lanes where its spans overlap, as a density where they are too many.

const GANTT_WIDTH = 1120;
const LABEL_WIDTH = 118;
const LANE = 13;
const ROW_GAP = 9;
const AXIS = 42;
const MOST_LANES = 8;

const spanNames = [...new Set(data.timeline.spans.map(({ name }) => name))];
const spanColor = (name) => (name === "wait" ? "wait" : `series-${spanNames.indexOf(name) % SERIES}`);

/** The lane of each span, so that those of one lane do not overlap; spans are in the order of their starts. */
function lanesOf(spans) {
  const ends = [];
  return spans.map(({ start, end }) => {
    let lane = ends.findIndex((until) => until <= start);
    if (lane < 0) lane = ends.length;
    ends[lane] = end;
    return lane;
  });
}

/** How many spans are under way, as `[time, count]` at each change. */
function density(spans) {
  const changes = spans
    .flatMap(({ start, end }) => [
      [start, 1],
      [end, -1],
    ])
    .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let count = 0;
  return changes.map(([time, change]) => [time, (count += change)]);
}

/** Draws the spans between the start of the first and the end of the last of some updates; of none, all spans. */
function drawGantt(steps) {
  const { spans, lanes } = data.timeline;
  const [begin, finish] = steps.length ? [steps[0][1], steps.at(-1)[2]] : [0, Math.max(...spans.map(({ end }) => end))];
  const visible = spans.filter(({ start, end }) => end > begin && start < finish);
  const x = (time) => {
    const share = (Math.min(finish, Math.max(begin, time)) - begin) / (finish - begin || 1);
    return LABEL_WIDTH + share * (GANTT_WIDTH - LABEL_WIDTH);
  };
  const rows = [];
  let top = AXIS;
  for (const lane of lanes) {
    const ofLane = visible.filter((span) => span.lane === lane);
    const { group, height } = row(lane, ofLane, x, top);
    rows.push(group);
    top += height + ROW_GAP;
  }
  const label = steps.length ? `Timeline of updates ${steps[0][0]} to ${steps.at(-1)[0]}` : "Timeline";
  const frame = { viewBox: `0 0 ${GANTT_WIDTH} ${top}`, role: "img", "aria-label": label };
  const borders = steps.flatMap((step) => border(step, x, top));
  byId("gantt").replaceChildren(shape("svg", frame, ...timeAxis(begin, finish, x, top), ...borders, ...rows));
}

function timeAxis(begin, finish, x, bottom) {
  return ticks(0, finish - begin, 8).flatMap((time) => [
    shape("line", { class: "grid", x1: x(begin + time), x2: x(begin + time), y1: AXIS - 6, y2: bottom }),
    shape("text", { x: x(begin + time), y: 10, "text-anchor": time ? "middle" : "start" }, `${readable(time)} s`),
  ]);
}

function border([update, start, end], x, bottom) {
  const width = x(end) - x(start);
  const name = width > 70 ? `update ${update}` : width > 24 ? String(update) : "";
  const chosen = update === state.update ? " chosen" : "";
  return [
    shape("rect", { class: `step${chosen}`, x: x(start) + 1, y: 17, width: Math.max(1, width - 2), height: 15, rx: 3 }),
    shape("text", { class: `step-name${chosen}`, x: x(start) + width / 2, y: 28.5, "text-anchor": "middle" }, name),
    shape("line", { class: "border", x1: x(end), x2: x(end), y1: 17, y2: bottom, "data-update": update }),
  ];
}

function row(name, spans, x, top) {
  const lanes = lanesOf(spans);
  const deepest = Math.max(0, ...lanes) + 1;
  const crowded = deepest > MOST_LANES;
  const height = crowded ? 3 * LANE : deepest * LANE;
  const group = shape(
    "g",
    { "data-lane": name },
    shape("text", { class: "role", x: 0, y: top + height / 2 + 4 }, name),
    shape("rect", { class: "lane", x: LABEL_WIDTH, y: top - 2, width: GANTT_WIDTH - LABEL_WIDTH, height: height + 4 }),
  );
  const most = shape("text", { x: 0, y: top + height / 2 + 18 }, `at most ${deepest}`);
  if (crowded) group.append(most, crowd(spans, x, top, height, deepest));
  else group.append(...spans.map((span, index) => bar(span, x, top + lanes[index] * LANE)));
  return { group, height };
}

function bar(span, x, top) {
  const drawn = shape("rect", {
    class: `span ${spanColor(span.name)}`,
    x: x(span.start),
    y: top,
    rx: 2,
    height: LANE - 2,
    width: Math.max(1, x(span.end) - x(span.start)),
    "data-name": span.name,
    "data-update": span.update,
  });
  return hinted(drawn, factsOf(span));
}

/** The outline of the number of spans at each time, as one area. */
function crowd(spans, x, top, height, most) {
  const point = (time, count) => `${x(time).toFixed(1)} ${(top + height - (count / most) * height).toFixed(1)}`;
  const corners = [];
  let before = 0;
  for (const [time, count] of density(spans)) {
    corners.push(point(time, before), point(time, count));
    before = count;
  }
  const drawn = { class: `crowd ${spanColor(spans[0].name)}`, d: `M${corners.join("L")}Z`, "data-most": most };
  const tokens = spans.reduce((sum, { facts }) => sum + (facts.tokens ?? 0), 0);
  const lines = [`${spans[0].lane}: ${spans.length} spans, at most ${most} at once`];
  if (tokens) lines.push(`${readable(tokens)} tokens`);
  return hinted(shape("path", drawn), lines);
}

function hinted(node, lines) {
  node.addEventListener("pointermove", (event) => hint(event, lines));
  node.addEventListener("pointerleave", () => hint());
  return node;
}

function factsOf({ lane, name, start, end, update, facts }) {
  const text = (value) => (typeof value === "number" && !Number.isInteger(value) ? readable(value) : String(value));
  const told = Object.entries(facts).map(([key, value]) => `${key}: ${text(value)}`);
  return [
    `${lane}: ${name}`,
    `${readable(end - start)} s, from ${readable(start)} s of the run`,
    `updates done: ${update ?? "–"}`,
    ...told,
  ];
}
