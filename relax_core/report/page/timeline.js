// When each role worked: which updates are shown, and how much of the time roles worked at once.

/** The place of the chosen update among those of the timeline, or of the last before it. */
const placeOfUpdate = () =>
  Math.max(
    0,
    data.timeline.steps.findLastIndex(([update]) => update <= state.update),
  );

/** The chosen update and those after it, up to a pause of the run, or to updates that are not in this file. */
function shownUpdates() {
  const [first, ...others] = data.timeline.steps.slice(placeOfUpdate()).slice(0, state.window);
  const shown = first ? [first] : [];
  for (const step of others) {
    const end = shown.at(-1)[2];
    if (step[1] - end > end - first[1]) break;
    shown.push(step);
  }
  return shown;
}

function drawTimeline() {
  const { spans, steps, total, total_steps } = data.timeline;
  byId("timeline-content").hidden = !spans.length;
  byId("timeline-controls").hidden = !steps.length;
  if (!spans.length) return note("timeline-note", "This run has no timeline.jsonl.");
  const some = `${spans.length} of ${total} spans are shown: those of ${steps.length} of ${total_steps} updates.`;
  if (spans.length < total) note("timeline-note", some);
  const names = spanNames.map((name) => element("span", { class: `key ${spanColor(name)}` }, name));
  byId("gantt-legend").replaceChildren(...names);
  const move = (by) => {
    const place = Math.min(steps.length - 1, Math.max(0, placeOfUpdate() + by));
    choose({ update: steps[place][0] });
  };
  byId("previous").addEventListener("click", () => move(-1));
  byId("next").addEventListener("click", () => move(1));
  bind("update", Number);
  bind("window", Number);
  watch(["update", "window"], () => drawGantt(shownUpdates()));
  drawOverlap();
}

function drawOverlap() {
  const { seconds, rollout, actor, training, sync, both, actor_waiting, data_wait, exposed, paused, bound } = data.overlap;
  const rows = [
    ["Time in which any role worked", `${readable(seconds)} s`],
    ["Rollout worked", percent(rollout)],
    ["Actor worked", percent(actor)],
    ["Actor trained", percent(training)],
    ["Actor published", percent(sync)],
    ["Rollout and actor worked at once", percent(both)],
    ["Actor waited", percent(actor_waiting)],
    ["Actor waited for rows", percent(data_wait)],
    ["Generation that nothing hid", percent(exposed)],
    ["Evaluation and checkpoints", percent(paused)],
    ["Bound: the longer of rollout and actor", percent(bound)],
    ...tokensDuringUpdates(),
  ];
  byId("overlap").replaceChildren(
    element("caption", {}, "The whole run"),
    ...rows.map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value))),
  );
}

/** What the run counted, or else an estimate from its spans. */
function tokensDuringUpdates() {
  const { tokens, tokens_during_updates, tokens_counted } = data.overlap;
  const of = tokens === null ? "" : ` of ${readable(tokens)}`;
  if (tokens_counted !== null) return [["Tokens generated while updates ran", readable(tokens_counted) + of]];
  if (tokens === null) return [];
  return [["Tokens generated while updates ran (estimate)", readable(tokens_during_updates) + of]];
}
