// The picker of every metric of every stream.

const titleOf = ({ stream, metric }) => (stream === "train" ? metric : `${stream}: ${metric}`);

function offerMetrics() {
  const lines = Object.entries(data.series).flatMap(([stream, { metrics }]) =>
    Object.keys(metrics).map((metric) => ({ stream, metric })),
  );
  const choices = lines.map(choiceOf);
  byId("all-metrics").hidden = !lines.length;
  byId("all-metrics").querySelector("summary").textContent = `All metrics (${lines.length})`;
  byId("metric-choices").replaceChildren(...choices);
  byId("metric-search").addEventListener("input", ({ target }) => {
    for (const choice of choices) choice.hidden = !choice.textContent.includes(target.value);
  });
}

/** A box that puts a metric's chart on the page and takes it away. */
function choiceOf(line) {
  const title = titleOf(line);
  const box = element("input", { type: "checkbox" });
  let chart = null;
  box.addEventListener("change", () => {
    if (box.checked) {
      chart = new Chart({ title, about: title, lines: [line] });
      charts.push(chart);
      byId("more-panels").append(chart.figure);
    } else {
      chart.figure.remove();
      charts.splice(charts.indexOf(chart), 1);
    }
  });
  return element("label", { "data-title": title }, box, ` ${title}`);
}
