// Elements, and text from agents.
//
// Text is always set as text, never as HTML. Styles are set through the CSSOM, which the Content-Security-Policy permits.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Properties: `class`, `on` (handlers), `style` (CSS properties), else attributes. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === "style") {
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child);
  }
}

/** Replaces the children of an element. */
export function set(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

// C0, DEL, C1, zero width, bidirectional controls, line separators, tags, lone surrogates.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const NAMED = { "\n": "↵", "\t": "⇥", "\r": "␍" };

/** Text of an agent with its invisible characters made visible, cut to `limit` characters. */
export function clean(text, limit = 300) {
  const whole = typeof text === "string" ? text : String(text ?? "");
  const part = whole.length > limit ? whole.slice(0, limit) : whole;
  const shown = part.replace(INVISIBLE, (c) => NAMED[c] ?? `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return whole.length > limit ? `${shown}… (${whole.length.toLocaleString("en")} characters)` : shown;
}

/** Text of an agent as an element: isolated in direction, cut by the layout, whole (to a limit) in its tooltip. */
export function said(text, className = "") {
  const shown = clean(text);
  return h("bdi", { class: `said ${className}`, title: shown }, shown);
}

/** A path or a qualified name: where space is short, its beginning is cut and its last part stays. */
export function path(text, separator = "/") {
  const shown = clean(text);
  const at = shown.lastIndexOf(separator) + 1;
  return h("bdi", { class: "path", title: shown }, h("span", { class: "said" }, shown.slice(0, at)), h("span", { class: "said" }, shown.slice(at)));
}

/** Text of an agent that keeps its lines, for details. */
export function block(text, limit = 20000) {
  const lines = String(text ?? "").slice(0, limit + 1).split("\n");
  let left = limit;
  const shown = [];
  for (const line of lines) {
    if (left <= 0) break;
    shown.push(clean(line, left));
    left -= line.length + 1;
  }
  return h("pre", { class: "block", tabindex: "0" }, shown.join("\n"));
}

/** Runs `task` at the next frame, once, however often it is asked for until then. */
export function framed(task) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      task();
    });
  };
}

/** Runs `task` when `ms` have passed since the last call. */
export function settled(task, ms = 200) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => task(...values), ms);
  };
}

/** Offers bytes or text as a file. */
export function download(name, type, content) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
