"use strict";

// What goes wrong is kept on the page, where a test, and a person with the inspector, finds it.
window.addEventListener("error", (event) => {
  document.documentElement.dataset.error = event.message;
});

const data = JSON.parse(document.getElementById("data").textContent);
const SVG = document.querySelector("svg").namespaceURI;
const SERIES = 8; // colours of the style: --series-0 and so on

const byId = (id) => document.getElementById(id);

/** An element with attributes and children. Text becomes text nodes, never markup. */
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** A number as people read it: four digits, thousands as k and M. */
function readable(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimmed(value / 1e6)}M`;
  if (size >= 1e4) return `${trimmed(value / 1e3)}k`;
  if (size > 0 && size < 1e-3) return value.toExponential(1);
  return trimmed(value);
}

const trimmed = (value) => String(Number(value.toPrecision(4)));

const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);

/** Shows lines of text beside the pointer; without lines hides them. */
function hint(event, lines) {
  const box = byId("hint");
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(...lines.map((line) => element("div", {}, line)));
  const left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
  const below = event.clientY + 18;
  const above = event.clientY - box.offsetHeight - 10;
  box.style.left = `${Math.max(8, left)}px`;
  box.style.top = `${below + box.offsetHeight > window.innerHeight ? Math.max(8, above) : below}px`;
}

function note(id, text) {
  byId(id).textContent = text;
  byId(id).hidden = !text;
}
