// The page, from top to bottom.

function drawOverview() {
  byId("run").textContent = data.run;
  byId("overview").replaceChildren(
    ...data.overview.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}

function drawRecord() {
  const when = (time) => new Date(1000 * time).toLocaleString();
  const evaluations = data.evaluations.flatMap(({ time, checkpoint, sets }) =>
    Object.entries(sets).map(([name, { score, tasks, error }]) => {
      const result = error ?? `${readable(score)} on ${tasks} tasks`;
      return [when(time), `update ${checkpoint}`, name, result];
    }),
  );
  const events = data.events.map(({ time, name, message }) => [when(time), name, message]);
  const answers = data.answers.map(({ stream, step, value }) => [`${stream} ${step}`, value]);
  for (const [id, rows] of Object.entries({ evaluations, events, answers })) fillTable(byId(id), rows);
  byId("config").querySelector("pre").textContent = data.config;
}

function fillTable(details, rows) {
  const lines = rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
  details.hidden = !rows.length;
  details.querySelector("summary").append(` (${rows.length})`);
  details.querySelector("table").append(...lines);
}

const known = Object.entries(data.series).filter(([stream]) => stream === "train" || stream === "eval");
const lastUpdate = Math.max(0, ...known.map(([, { steps }]) => steps.at(-1)));
Object.assign(state, {
  update: lastUpdate,
  smooth: 1,
  window: 4,
  batch: batches.at(-1)?.batch ?? 0,
  color: isKnown("advantage") ? "advantage" : "mask",
  reward: "any",
  stop: "any",
  search: "",
});
readAddress();
drawOverview();
drawCharts();
offerMetrics();
drawTimeline();
drawSamples();
drawRecord();
document.documentElement.dataset.ready = "true";
