// The page, from top to bottom.

function drawOverview() {
  byId("run").textContent = data.run;
  byId("overview").replaceChildren(
    ...data.overview.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}

function drawRecord() {
  const table = (id, rows) => {
    byId(id).hidden = !rows.length;
    byId(id).querySelector("summary").append(` (${rows.length})`);
    byId(id)
      .querySelector("table")
      .append(...rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell)))));
  };
  table(
    "events",
    data.events.map(({ time, name, message }) => [new Date(1000 * time).toLocaleString(), name, message]),
  );
  table(
    "answers",
    data.answers.map(({ stream, step, value }) => [`${stream} ${step}`, value]),
  );
  byId("config").querySelector("pre").textContent = data.config;
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
