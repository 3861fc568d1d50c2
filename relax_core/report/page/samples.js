// Rows of stored batches, token by token.

const { batches, texts } = data.samples;
const at = (numbers, index) => (Array.isArray(numbers) ? numbers[index] : numbers) ?? null;

function gapOf(row, index) {
  const [trainer, rollout] = [at(row.numbers.trainer_logprobs, index), at(row.numbers.rollout_logprobs, index)];
  return trainer === null || rollout === null ? null : trainer - rollout;
}

/** The version of the weights that sampled a token; of a prompt none. */
function versionOf(row, index) {
  return row.mask[index] ? row.segments.findLast(([start]) => start <= index)?.[1] ?? null : null;
}

const versions = [...new Set(batches.flatMap(({ rows }) => rows.flatMap(({ segments }) => segments.map(([, version]) => version))))].sort((a, b) => a - b);

const signed = (value, scale) => `rgb(var(--${value < 0 ? "low" : "high"}) / ${Math.min(0.75, 0.75 * Math.abs(value / scale)).toFixed(3)})`;
const largest = (read) => Math.max(1e-9, ...batches.flatMap(({ rows }) => rows.flatMap((row) => row.tokens.map((_, index) => (row.mask[index] ? Math.abs(read(row, index) ?? 0) : 0)))));

/** The choices of colour: what they read of a token, and the background they make of it. */
const COLORS = {
  mask: { title: "mask", read: (row, index) => row.mask[index], paint: (value) => (value ? "rgb(var(--chosen) / 0.3)" : null),
    legend: [["trained on", "rgb(var(--chosen) / 0.3)"]] },
  advantage: scale("advantage", (row, index) => at(row.numbers.advantages, index)),
  logprob: { title: "log-probability", read: (row, index) => at(row.numbers.rollout_logprobs, index),
    paint: (value) => `rgb(var(--low) / ${Math.min(0.75, -value / 6).toFixed(3)})`,
    legend: [["certain", "transparent"], ["e⁻²", "rgb(var(--low) / 0.333)"], ["e⁻⁴ and less", "rgb(var(--low) / 0.667)"]] },
  gap: scale("trainer − rollout log-probability", gapOf),
  version: { title: "version of the weights", read: versionOf,
    paint: (value) => `color-mix(in srgb, var(--series-${versions.indexOf(value) % 6}) 35%, transparent)`, legend: [] },
};

function scale(title, read) {
  let size = null; // found when it is first asked for
  const color = (value) => signed(value, (size ??= largest(read)));
  return { title, read, paint: color,
    get legend() { color(0); return [-size, -size / 2, 0, size / 2, size].map((value) => [readable(value), color(value)]); } };
}

const isKnown = (name) => batches.some(({ rows }) => rows.some((row) => row.tokens.some((_, index) => row.mask[index] && COLORS[name].read(row, index) !== null)));
const textOf = (row) => row.tokens.map((token) => texts[token]).join("");

const REWARDS = {
  any: () => true, positive: (reward) => reward > 0, zero: (reward) => reward === 0,
  negative: (reward) => reward < 0, none: (reward) => reward === null,
};

function matches(row) {
  const reward = state.reward === "none" || row.reward !== null ? REWARDS[state.reward](row.reward) : state.reward === "any";
  return reward && (state.stop === "any" || row.stop === state.stop) && textOf(row).toLowerCase().includes(state.search.toLowerCase());
}

function drawRows() {
  const batch = batches.find(({ batch }) => batch === state.batch) ?? batches.at(-1);
  const rows = batch.rows.filter(matches);
  const some = batch.rows.length < batch.total ? ` (${batch.rows.length} of its ${batch.total} rows are in this file)` : "";
  byId("matches").textContent = `${rows.length} of ${batch.rows.length} rows of batch ${batch.batch}${some}, trained at version ${batch.version}, temperature ${batch.temperature}`;
  byId("rows").replaceChildren(...rows.map((row) => card(row, batch)));
}

function card(row, batch) {
  const facts = [
    ["group", row.group], ["row", row.id], ["stop", row.stop], ["lag", row.lag], ["update", row.updates.join(", ") || "in none"],
    ["label", row.label === null ? null : typeof row.label === "string" ? row.label : JSON.stringify(row.label)], ...Object.entries(row.parts),
  ].filter(([, value]) => value !== null);
  const sign = row.reward === null ? "none" : row.reward > 0 ? "positive" : row.reward < 0 ? "negative" : "zero";
  const reward = row.reward === null ? "abstained" : `reward ${readable(row.reward)}`;
  const first = row.mask.indexOf(1) < 0 ? row.tokens.length : row.mask.indexOf(1);
  return element("article", { class: "row", "data-row": row.id },
    element("header", {}, element("span", { class: `reward ${sign}` }, reward),
      ...facts.map(([name, value]) => element("span", { class: "fact" }, `${name} `, element("b", {}, typeof value === "number" ? readable(value) : String(value))))),
    tokensOf(row, 0, first, "prompt"), tokensOf(row, first, row.tokens.length, "response"));
}

function tokensOf(row, first, last, name) {
  const shown = row.tokens.slice(first, last).map((token, offset) => tokenOf(row, token, first + offset));
  if (last < row.length && last === row.tokens.length) shown.push(` … ${row.length - last} more tokens`);
  const list = element("pre", { class: name, "aria-label": name }, ...shown);
  list.addEventListener("pointermove", (event) => {
    const index = event.target.dataset.index;
    hint(event, index === undefined ? null : tokenFacts(row, Number(index)));
  });
  list.addEventListener("pointerleave", () => hint());
  return list;
}

function tokenOf(row, token, index) {
  const text = texts[token].replaceAll("\n", "⏎\n");
  const color = COLORS[state.color];
  const value = row.mask[index] || state.color === "mask" ? color.read(row, index) : null;
  const background = value === null ? null : color.paint(value);
  return element("span", { class: "token", "data-index": index, style: background && `background:${background}` }, text);
}

function tokenFacts(row, index) {
  const numbers = Object.entries(row.numbers).map(([name, values]) => [name.replace("_logprobs", " log-probability"), at(values, index)]);
  const facts = row.mask[index] ? [...numbers, ["trainer − rollout", gapOf(row, index)], ["version", versionOf(row, index)]] : [["not trained on", null]];
  return [`token ${index}: ${JSON.stringify(texts[row.tokens[index]])}, id ${row.tokens[index]}`,
    ...facts.map(([name, value]) => (value === null ? name : `${name}: ${readable(value)}`)).filter((line) => line)];
}

function drawSamples() {
  if (!batches.length) {
    note("samples-note", "This run has stored no batches; what it logged in words is below, under Record.");
    byId("samples-controls").hidden = true;
    return;
  }
  if (batches.length < data.samples.total) note("samples-note", `${batches.length} of ${data.samples.total} stored batches are in this file.`);
  byId("batch").replaceChildren(...batches.map(({ batch, first_update, last_update }) => {
    const updates = first_update === last_update ? `update ${first_update}` : `updates ${first_update} to ${last_update}`;
    return element("option", { value: batch }, `${batch} (${updates})`);
  }));
  const colors = Object.keys(COLORS).filter(isKnown);
  byId("color").replaceChildren(...colors.map((name) => element("option", { value: name }, COLORS[name].title)));
  const stops = [...new Set(batches.flatMap(({ rows }) => rows.map(({ stop }) => stop)))].filter((stop) => stop).sort();
  byId("stop").append(...stops.map((stop) => element("option", { value: stop }, stop)));
  for (const id of ["color", "reward", "stop", "search"]) bind(id);
  bind("batch", Number);
  watch(["color"], () => byId("color-legend").replaceChildren(...COLORS[state.color].legend.map(([name, background]) =>
    element("span", { class: "swatch" }, element("i", { style: `background:${background}` }), name))));
  watch(["batch", "color", "reward", "stop", "search"], drawRows);
}
