// What a token can be coloured by.

const { batches, texts } = data.samples;
const ORDINARY = 0.98; // share of tokens whose numbers a scale tells apart; those beyond have the strongest colour

/** The number of a token, in a list of one for each or as the one of its row. */
const at = (numbers, index) => (Array.isArray(numbers) ? numbers[index] : numbers) ?? null;

function gapOf(row, index) {
  const [trainer, rollout] = [at(row.numbers.trainer_logprobs, index), at(row.numbers.rollout_logprobs, index)];
  return trainer === null || rollout === null ? null : trainer - rollout;
}

/** The version of the weights that sampled a token; of a prompt none. */
function versionOf(row, index) {
  return row.mask[index] ? (row.segments.findLast(([start]) => start <= index)?.[1] ?? null) : null;
}

const shownBatch = () => batches.find(({ batch }) => batch === state.batch);
const versionColor = (version) => `color-mix(in srgb, var(--series-${version % SERIES}) 35%, transparent)`;
const versionsOf = ({ rows }) =>
  [...new Set(rows.flatMap(({ segments }) => segments.map(([, version]) => version)))].sort((a, b) => a - b);

const chosen = "rgb(var(--chosen) / 0.3)";
const low = (strength) => `rgb(var(--low) / ${Math.min(0.75, strength).toFixed(3)})`;
const high = (strength) => `rgb(var(--high) / ${Math.min(0.75, strength).toFixed(3)})`;

/** The choices: what they read of a token, the background they paint for it, and what the colours mean. */
const COLORS = {
  mask: {
    title: "mask",
    read: (row, index) => row.mask[index],
    paint: (value) => (value ? chosen : null),
    legend: () => [["trained on", chosen]],
  },
  advantage: twoSided("advantage", (row, index) => at(row.numbers.advantages, index)),
  logprob: {
    title: "log-probability",
    read: (row, index) => at(row.numbers.rollout_logprobs, index),
    paint: (value) => low(-value / 6),
    legend: () => [0, -1, -2, -4].map((value) => [value ? readable(value) : "0: certain", low(-value / 6)]),
  },
  gap: twoSided("trainer − rollout log-probability", gapOf),
  version: {
    title: "version of the weights",
    read: versionOf,
    paint: versionColor,
    legend: () => versionsOf(shownBatch()).map((version) => [version, versionColor(version)]),
  },
};

/** A choice whose numbers have two signs; the same colours in all batches. */
function twoSided(title, read) {
  let size = null; // found when it is first asked for
  const paint = (value) => {
    size ??= ordinarySize(read);
    return value < 0 ? low((0.75 * -value) / size) : high((0.75 * value) / size);
  };
  const legend = () => {
    paint(0);
    return [-size, -size / 2, 0, size / 2, size].map((value) => [readable(value), paint(value)]);
  };
  return { title, read, paint, legend };
}

/** A magnitude that few tokens exceed. */
function ordinarySize(read) {
  const sizes = [];
  for (const { rows } of batches) {
    for (const row of rows) {
      row.mask.forEach((trained, index) => trained && sizes.push(Math.abs(read(row, index) ?? 0)));
    }
  }
  sizes.sort((a, b) => a - b);
  return sizes[Math.ceil(ORDINARY * sizes.length) - 1] || sizes.at(-1) || 1;
}

/** Whether any token has a number for a choice. */
const isKnown = (name) =>
  batches.some(({ rows }) =>
    rows.some((row) => row.mask.some((trained, index) => trained && COLORS[name].read(row, index) !== null)),
  );
