// Rows of stored batches, token by token.

const textOf = (row) => row.tokens.map((token) => texts[token]).join("");

const REWARDS = {
  any: () => true,
  positive: (reward) => reward > 0,
  zero: (reward) => reward === 0,
  negative: (reward) => reward < 0,
  none: (reward) => reward === null,
};

function matches(row) {
  const reward =
    state.reward === "none" || row.reward !== null ? REWARDS[state.reward](row.reward) : state.reward === "any";
  return (
    reward &&
    (state.stop === "any" || row.stop === state.stop) &&
    textOf(row).toLowerCase().includes(state.search.toLowerCase())
  );
}

function drawRows() {
  const batch = shownBatch();
  const rows = batch.rows.filter(matches);
  const some =
    batch.rows.length < batch.total ? ` (${batch.rows.length} of its ${batch.total} rows are in this file)` : "";
  byId("matches").textContent =
    `${rows.length} of ${batch.rows.length} rows of batch ${batch.batch}${some}, ` +
    `trained at version ${batch.version}, temperature ${batch.temperature}`;
  byId("rows").replaceChildren(...rows.map(card));
}

function card(row) {
  const first = row.mask.includes(1) ? row.mask.indexOf(1) : row.tokens.length;
  return element(
    "article",
    { class: "row", "data-row": row.id },
    element("header", {}, rewardOf(row), ...factsOfRow(row).map(factOf)),
    ...(row.media.length ? [element("div", { class: "media" }, ...row.media.map(mediumOf))] : []),
    tokensOf(row, 0, first, "prompt"),
    tokensOf(row, first, row.tokens.length, "response"),
  );
}

function rewardOf({ reward }) {
  const sign = reward > 0 ? "positive" : reward < 0 ? "negative" : "zero";
  const text = reward === null ? "no reward" : `reward ${readable(reward)}`;
  return element("span", { class: `reward ${sign}` }, text);
}

function factsOfRow(row) {
  return Object.entries({
    group: String(row.group),
    row: String(row.id),
    stop: row.stop,
    lag: row.lag,
    update: row.updates.join(", ") || "none",
    label: typeof row.label === "object" ? row.label && JSON.stringify(row.label) : row.label,
    ...row.parts,
  }).filter(([, value]) => value !== null);
}

function factOf([name, value]) {
  const text = typeof value === "number" ? readable(value) : String(value);
  return element("span", { class: "fact" }, `${name} `, element("b", {}, text));
}

function mediumOf(place) {
  const { kind, source, url, problem } = data.samples.media[place];
  if (!url) return element("span", { class: "problem" }, `${kind}: ${problem}`);
  return url.startsWith("data:image/") // also a film, as a GIF
    ? element("img", { src: url, alt: source, title: source })
    : element(kind, { src: url, title: source, controls: "", preload: "metadata" });
}

/** Where a run of equal marks begins, as stand for a medium, and how many there are; other tokens stand alone. */
function runsOf(row, first, last) {
  const runs = [];
  for (let index = first; index < last; index += runs.at(-1).length) {
    let end = index + 1;
    const isMark = !row.mask[index] && /^<\|.*\|>$/.test(texts[row.tokens[index]]);
    while (isMark && end < last && row.tokens[end] === row.tokens[index]) end++;
    runs.push({ index, length: end - index });
  }
  return runs;
}

function tokensOf(row, first, last, name) {
  const shown = runsOf(row, first, last).flatMap(({ index, length }) => {
    const token = tokenOf(row, row.tokens[index], index);
    return length > 1 ? [token, element("span", { class: "run" }, ` ×${length} `)] : [token];
  });
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
  return element(
    "span",
    { class: "token", "data-index": index, style: background && `background:${background}` },
    text,
  );
}

function tokenFacts(row, index) {
  const token = row.tokens[index];
  const name = `token ${index}: ${JSON.stringify(texts[token])}, id ${token}`;
  if (!row.mask[index]) return [name, "not trained on"];
  const numbers = Object.entries(row.numbers).map(([column, values]) => [
    column.replace("_logprobs", " log-probability"),
    at(values, index),
  ]);
  const facts = [...numbers, ["trainer − rollout", gapOf(row, index)], ["version", versionOf(row, index)]];
  return [name, ...facts.filter(([, value]) => value !== null).map(([fact, value]) => `${fact}: ${readable(value)}`)];
}

function drawSamples() {
  const { total, damaged } = data.samples;
  const some = batches.length < total ? [`${batches.length} of ${total} stored batches are in this file.`] : [];
  const none = total ? [] : ["This run has stored no batches; what it logged in words is below, under Record."];
  note("samples-note", [...none, ...some, ...damaged].join(" "));
  byId("samples-controls").hidden = !batches.length;
  if (!batches.length) return;
  byId("batch").replaceChildren(
    ...batches.map(({ batch, first_update, last_update }) => {
      const updates =
        first_update === last_update ? `update ${first_update}` : `updates ${first_update} to ${last_update}`;
      return element("option", { value: batch }, `${batch} (${updates})`);
    }),
  );
  const colors = Object.keys(COLORS).filter(isKnown);
  byId("color").replaceChildren(...colors.map((name) => element("option", { value: name }, COLORS[name].title)));
  const stops = [...new Set(batches.flatMap(({ rows }) => rows.map(({ stop }) => stop)))].filter((stop) => stop).sort();
  byId("stop").append(...stops.map((stop) => element("option", { value: stop }, stop)));
  for (const id of ["color", "reward", "stop", "search"]) bind(id);
  bind("batch", Number);
  watch(["batch", "color"], () =>
    byId("color-legend").replaceChildren(
      ...COLORS[state.color]
        .legend()
        .map(([name, background]) =>
          element("span", { class: "swatch" }, element("i", { style: `background:${background}` }), name),
        ),
    ),
  );
  watch(["batch", "color", "reward", "stop", "search"], drawRows);
}
