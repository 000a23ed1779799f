// A table that draws only the lines in sight, so that 10,000 rows scroll smoothly.

import { framed, h, set } from "./dom.js";

const LINE = 29;
const SPARE = 6;
let tables = 0;

/**
 * `columns`: `{ title, width, num, cell(row), sort(row) }`; width is a CSS track. `open(row)` is called by a click or Enter.
 * `key(row)` keeps the selection over updates. `height`: the largest height in CSS, or "none" to grow with the rows.
 */
export function table({ label, columns, key, open, height = "62vh", minWidth = 0, order, foot }) {
  const prefix = `table${++tables}-`;
  let rows = [];
  let sorted = [];
  let selected = null;
  let by = order ? { column: columns.findIndex((column) => column.title === order[0]), down: order[1] !== "up" } : null;

  const titles = h("div", { class: "cells titles", role: "row" });
  const lines = h("div", { class: "lines", role: "rowgroup" });
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "grid", "aria-label": label, style: { "max-height": height } }, titles, lines);
  const footer = h("div", { class: "foot", hidden: true });
  const element = h("div", { class: "table" }, scroll, footer);
  element.style.setProperty("--columns", columns.map((column) => column.width ?? "minmax(80px, 1fr)").join(" "));
  if (minWidth) element.style.setProperty("--min", `${minWidth}px`);

  function drawTitles() {
    set(titles, columns.map((column, at) => {
      const mark = by?.column === at ? (by.down ? " ↓" : " ↑") : "";
      const inner = column.sort
        ? h("button", { type: "button", on: { click: () => sortBy(at) } }, column.title + mark)
        : column.title;
      const way = by?.column === at ? (by.down ? "descending" : "ascending") : null;
      return h("div", { role: "columnheader", class: column.num ? "num" : "", "aria-sort": way }, inner);
    }));
  }

  function sortBy(at) {
    by = by?.column === at ? { column: at, down: !by.down } : { column: at, down: Boolean(columns[at].num) };
    drawTitles();
    arrange();
  }

  function arrange() {
    sorted = rows;
    if (by && columns[by.column]?.sort) {
      const { sort } = columns[by.column];
      const sign = by.down ? -1 : 1;
      sorted = rows.map((row) => [sort(row), row]).sort(([a], [b]) => sign * compare(a, b)).map(([, row]) => row);
    }
    lines.style.height = `${sorted.length * LINE}px`;
    scroll.setAttribute("aria-rowcount", String(sorted.length + 1));
    const text = foot?.(rows);
    footer.hidden = !text;
    footer.textContent = text ?? "";
    draw();
  }

  function draw() {
    const from = Math.max(0, Math.floor(scroll.scrollTop / LINE) - SPARE);
    const sight = (scroll.clientHeight || 900) + 2 * SPARE * LINE;
    const part = sorted.slice(from, from + Math.ceil(sight / LINE));
    set(lines, part.map((row, at) => {
      const id = key(row);
      const line = h("div", {
        class: open ? "cells line opens" : "cells line",
        role: "row",
        id: prefix + (from + at),
        "aria-rowindex": String(from + at + 2),
        "aria-selected": id === selected ? "true" : "false",
        style: { top: `${(from + at) * LINE}px` },
      }, columns.map((column) => h("div", { role: "gridcell", class: column.num ? "num" : "" }, column.cell(row))));
      line.addEventListener("click", (event) => {
        if (event.target.closest("a, button") || String(getSelection())) return;
        select(from + at, true);
      });
      return line;
    }));
  }

  function select(at, opens) {
    const row = sorted[at];
    if (!row) return;
    selected = key(row);
    scroll.setAttribute("aria-activedescendant", prefix + at);
    const top = at * LINE;
    const sight = scroll.clientHeight - LINE;
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    else if (top + LINE > scroll.scrollTop + sight) scroll.scrollTop = top + LINE - sight;
    draw();
    if (opens) open?.(row);
  }

  scroll.addEventListener("scroll", framed(draw), { passive: true });
  scroll.addEventListener("keydown", (event) => {
    if (event.target !== scroll) return;
    const at = sorted.findIndex((row) => key(row) === selected);
    const page = Math.max(1, Math.floor(scroll.clientHeight / LINE) - 2);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: sorted.length - 1 }[event.key];
    if (to !== undefined) select(Math.min(sorted.length - 1, Math.max(0, to)), false);
    else if (event.key === "Enter" && at >= 0) select(at, true);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(framed(draw)).observe(scroll);
  drawTitles();

  return {
    element,
    scroll,
    /** Replaces the rows; the selection stays. `follow`: new rows came at the top, and what is in sight stays in sight. */
    update(next, follow = false) {
      const first = follow && scroll.scrollTop > 0 && rows.length ? next.findIndex((row) => key(row) === key(rows[0])) : 0;
      rows = next;
      arrange();
      if (first > 0) scroll.scrollTop += first * LINE;
    },
    select(id) {
      selected = id;
      draw();
    },
    get rows() {
      return sorted;
    },
  };
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}
