// What each role did when: a row for each role, in lanes where its spans overlap, as a density where they are too many.

const GANTT_WIDTH = 1120, LABEL_WIDTH = 92, LANE = 13, ROW_GAP = 9, AXIS = 24;
const MOST_LANES = 8;

const spanNames = [...new Set(data.timeline.spans.map(({ name }) => name))];
const spanColor = (name) => `series-${spanNames.indexOf(name) % 6}`;

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
  const changes = spans.flatMap(({ start, end }) => [[start, 1], [end, -1]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let count = 0;
  return changes.map(([time, change]) => [time, (count += change)]);
}

/** The updates that are shown: the chosen one, or the last before it, and those after it. */
function shownSteps() {
  const { steps } = data.timeline;
  const place = Math.max(0, steps.findLastIndex(([update]) => update <= state.update));
  return steps.slice(place, place + Number(state.window));
}

function drawGantt() {
  const steps = shownSteps();
  const { spans, roles } = data.timeline;
  const [begin, finish] = steps.length ? [steps[0][1], steps.at(-1)[2]] : [0, Math.max(...spans.map(({ end }) => end))];
  const visible = spans.filter(({ start, end }) => end > begin && start < finish);
  const x = (time) => LABEL_WIDTH + ((Math.min(finish, Math.max(begin, time)) - begin) / (finish - begin || 1)) * (GANTT_WIDTH - LABEL_WIDTH);
  let top = AXIS;
  const rows = [];
  for (const role of roles) {
    const row = roleRow(role, visible.filter((span) => span.role === role), x, top);
    rows.push(row.group);
    top += row.height + ROW_GAP;
  }
  const label = steps.length ? `Timeline of updates ${steps[0][0]} to ${steps.at(-1)[0]}` : "Timeline";
  byId("gantt").replaceChildren(shape("svg", { viewBox: `0 0 ${GANTT_WIDTH} ${top}`, role: "img", "aria-label": label },
    ...timeAxis(begin, finish, x, top), ...steps.flatMap((step) => border(step, x, top)), ...rows));
}

function timeAxis(begin, finish, x, bottom) {
  return ticks(0, finish - begin, 8).flatMap((time) => [
    shape("line", { class: "grid", x1: x(begin + time), x2: x(begin + time), y1: AXIS - 4, y2: bottom }),
    shape("text", { class: "tick", x: x(begin + time), y: 10, "text-anchor": time ? "middle" : "start" }, `${readable(time)} s`),
  ]);
}

function border([update, start, end], x, bottom) {
  return [
    shape("rect", { class: update === state.update ? "step chosen" : "step", x: x(start), y: AXIS - 8, width: x(end) - x(start), height: 5 }),
    shape("line", { class: "border", x1: x(end), x2: x(end), y1: AXIS - 8, y2: bottom, "data-update": update }),
  ];
}

function roleRow(role, spans, x, top) {
  const lanes = lanesOf(spans);
  const deepest = Math.max(0, ...lanes) + 1;
  const crowded = deepest > MOST_LANES;
  const height = crowded ? 3 * LANE : deepest * LANE;
  const group = shape("g", { "data-role": role },
    shape("text", { class: "role", x: 0, y: top + height / 2 + 4 }, role),
    shape("rect", { class: "lane", x: LABEL_WIDTH, y: top - 2, width: GANTT_WIDTH - LABEL_WIDTH, height: height + 4 }));
  if (crowded) group.append(crowd(spans, x, top, height, deepest));
  else group.append(...spans.map((span, index) => bar(span, x, top + lanes[index] * LANE)));
  return { group, height };
}

function bar(span, x, top) {
  const drawn = shape("rect", {
    class: `span ${spanColor(span.name)}`, x: x(span.start), y: top, rx: 2, height: LANE - 2,
    width: Math.max(1, x(span.end) - x(span.start)), "data-name": span.name, "data-update": span.update,
  });
  drawn.addEventListener("pointermove", (event) => hint(event, factsOf(span)));
  drawn.addEventListener("pointerleave", () => hint());
  return drawn;
}

function crowd(spans, x, top, height, most) {
  const y = (count) => top + height - (count / most) * height;
  let drawn = "", before = 0;
  for (const [time, count] of density(spans)) {
    drawn += `${drawn ? "L" : "M"}${x(time).toFixed(1)} ${y(before).toFixed(1)}L${x(time).toFixed(1)} ${y(count).toFixed(1)}`;
    before = count;
  }
  const area = shape("path", { class: `crowd ${spanColor(spans[0].name)}`, d: `${drawn}Z`, "data-most": most });
  const tokens = spans.reduce((sum, { facts }) => sum + (facts.tokens ?? 0), 0);
  const lines = [`${spans[0].role}: ${spans.length} spans, at most ${most} at once`, ...(tokens ? [`${readable(tokens)} tokens`] : [])];
  area.addEventListener("pointermove", (event) => hint(event, lines));
  area.addEventListener("pointerleave", () => hint());
  return area;
}

function factsOf({ role, name, start, end, update, facts }) {
  const told = Object.entries(facts).map(([key, value]) => `${key}: ${typeof value === "number" ? readable(value) : value}`);
  return [`${role}: ${name}`, `${readable(end - start)} s, from ${readable(start)} s of the run`, `updates done: ${update ?? "–"}`, ...told];
}

/** A table of the numbers that say whether the roles worked at once. */
function drawOverlap() {
  const { seconds, rollout, actor, both, actor_waiting, tokens, tokens_during_updates } = data.overlap;
  const rows = [
    ["Time in which any role worked", `${readable(seconds)} s`],
    ["Rollout worked", percent(rollout)],
    ["Actor worked", percent(actor)],
    ["Rollout and actor worked at once", percent(both)],
    ["Actor waited", percent(actor_waiting)],
  ];
  const counted = data.series.train?.metrics["perf/tokens_during_update"]?.reduce((sum, value) => sum + (value ?? 0), 0);
  if (counted !== undefined) rows.push(["Tokens generated while updates ran", readable(counted)]);
  else if (tokens !== null) rows.push(["Tokens generated while updates ran (estimate)", `${readable(tokens_during_updates)} of ${readable(tokens)}`]);
  byId("overlap").replaceChildren(
    element("caption", {}, "The whole run"),
    ...rows.map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value))));
}

function drawTimeline() {
  const { spans, steps, total, total_steps } = data.timeline;
  if (!spans.length) {
    note("timeline-note", "This run has no timeline.jsonl.");
    byId("timeline-controls").hidden = true;
    return;
  }
  if (spans.length < total) note("timeline-note", `${spans.length} of ${total} spans are shown: those of ${steps.length} of ${total_steps} updates.`);
  byId("gantt-legend").replaceChildren(...spanNames.map((name) => element("span", { class: `key ${spanColor(name)}` }, name)));
  const place = () => Math.max(0, steps.findLastIndex(([update]) => update <= state.update));
  byId("previous").addEventListener("click", () => choose({ update: steps[Math.max(0, place() - 1)][0] }));
  byId("next").addEventListener("click", () => choose({ update: steps[Math.min(steps.length - 1, place() + 1)][0] }));
  byId("timeline-controls").hidden = !steps.length;
  bind("update", Number);
  bind("window", Number);
  watch(["update", "window"], drawGantt);
  drawOverlap();
}
