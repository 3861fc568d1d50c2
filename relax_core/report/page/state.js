// What a person has chosen. It is kept behind the # of the address, so that a link shows the same.

const state = {};
const watchers = [];

/** Calls `draw` now and whenever one of the named choices changes. */
function watch(names, draw) {
  watchers.push({ names, draw });
  draw();
}

function choose(changes) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  Object.assign(state, changes);
  if (!changed.length) return;
  history.replaceState(null, "", `#${new URLSearchParams(state)}`);
  redraw(changed);
}

function redraw(changed) {
  for (const { names, draw } of watchers) {
    if (names.some((name) => changed.includes(name))) draw();
  }
}

/** Takes over the choices in the address; a plain `#samples` leads to a place on the page instead. */
function readAddress() {
  const given = [...new URLSearchParams(location.hash.slice(1))].filter(([name]) => name in state);
  const values = given.map(([name, text]) => [name, typeof state[name] === "number" ? Number(text) : text]);
  Object.assign(state, Object.fromEntries(values.filter(([, value]) => !Number.isNaN(value))));
  return given.map(([name]) => name);
}

/** Ties a control to a choice, both ways. What a list does not offer, an old link may say, becomes its first. */
function bind(id, convert = String) {
  const control = byId(id);
  const options = [...(control.options ?? [])].map(({ value }) => value);
  if (options.length && !options.includes(String(state[id]))) state[id] = convert(options[0]);
  control.addEventListener("input", () => {
    if (control.value !== "") choose({ [id]: convert(control.value) });
    else if (control.type === "search") choose({ [id]: "" });
  });
  watch([id], () => {
    if (control.value !== String(state[id])) control.value = state[id];
  });
}

window.addEventListener("hashchange", () => redraw(readAddress()));
