// A table that draws only the lines in sight. On a phone each row is a block of lines.

import { button, framed, h, renew, set } from "./dom.js";
import { here, keep } from "./router.js";

const LINE = 29;
/** Of a row that is a block: the line of its first column, a line of others, and what is between rows. */
const [FIRST, OTHER, BETWEEN] = [26, 21, 11];
const SPARE = 6;
const narrow = matchMedia("(max-width: 640px)");
let tables = 0;

/** A table without choices. `columns`: titles and classes; `rows`: their cells. */
export function plainTable(columns, rows) {
	const line = (tag, cells) => h("tr", {}, cells.map((cell, at) => h(tag, { class: columns[at][1] }, cell)));
	return h("table", { class: "plain" }, h("thead", {}, line("th", columns.map(([title]) => title))), h("tbody", {}, rows.map((cells) => line("td", cells))));
}

/** Shows a list in a panel, or what `nothing()` returns when there are no rows. */
export function listOrEmpty(body, list, rows, nothing) {
	list.update(rows);
	if (rows.length) {
		if (body.firstChild !== list.element) set(body, list.element);
		return;
	}
	const empty = nothing();
	if (body.firstChild === list.element || body.textContent !== empty.textContent) set(body, empty);
}

/**
 * `columns`: `{ title, width, num, cell(row), sort(row), isWide }`; width is a CSS track, `isWide` gives it a whole line on a phone. `open(row)`
 * is called by a click or Enter. `key(row)` keeps the selection over updates. `height`: the largest height in CSS, or "none" to grow with the
 * rows. `sortName`: the parameter of the address that has the order.
 */
export function table({ label, columns, key, open, height = "62vh", minWidth = 0, order, foot, sortName = null }) {
	const prefix = `table${++tables}-`;
	let rows = [];
	let sorted = [];
	let selected = null;
	const orderOf = ([title, way]) => ({ column: columns.findIndex((column) => column.title === title && column.sort), down: way !== "up" });
	const given = sortName && /^(.+) (up|down)$/.exec(here().query.get(sortName) ?? "");
	let by = order ? orderOf(order) : null;
	if (given && orderOf(given.slice(1)).column >= 0) by = orderOf(given.slice(1));
	// The lines of a block: the first column has one, then come pairs, or wide ones.
	let pairs = 0;
	let others = 0;
	for (const column of columns.slice(1)) {
		if (column.isWide) [others, pairs] = [others + Math.ceil(pairs / 2) + 1, 0];
		else pairs += 1;
	}
	const block = FIRST + BETWEEN + OTHER * (others + Math.ceil(pairs / 2));
	const tall = () => narrow.matches ? block : LINE;

	const titles = h("div", { class: "cells titles", role: "row" });
	const lines = h("div", { class: "lines", role: "rowgroup" });
	const scroll = h("div", { class: "scroll", tabindex: "0", role: "grid", "aria-label": label, style: { "max-height": height } }, titles, lines);
	const footer = h("div", { class: "foot", hidden: true });
	const element = h("div", { class: "table" }, scroll, footer);
	element.style.setProperty("--columns", columns.map((column) => column.width ?? "minmax(80px, 1fr)").join(" "));
	if (minWidth) element.style.setProperty("--min", `${minWidth}px`);

	function drawTitles() {
		const focused = [...titles.children].findIndex((one) => one.contains(document.activeElement));
		set(titles, columns.map((column, at) => {
			const mark = by?.column === at ? (by.down ? " ↓" : " ↑") : "";
			const inner = column.sort
				? button(() => sortBy(at), column.title + mark)
				: column.title;
			const way = by?.column === at ? (by.down ? "descending" : "ascending") : null;
			return h("div", { role: "columnheader", class: `${column.num ? "num" : ""}${column.sort ? "" : " unsorted"}`, "aria-sort": way }, inner);
		}));
		titles.children[focused]?.querySelector("button")?.focus();
	}

	function sortBy(at) {
		by = by?.column === at ? { column: at, down: !by.down } : { column: at, down: Boolean(columns[at].num) };
		drawTitles();
		if (sortName) keep({ [sortName]: `${columns[at].title} ${by.down ? "down" : "up"}` });
		arrange();
	}

	function arrange() {
		sorted = rows;
		if (by && columns[by.column]?.sort) {
			const { sort } = columns[by.column];
			const sign = by.down ? -1 : 1;
			sorted = rows.map((row) => [sort(row), row]).sort(([a], [b]) => sign * compare(a, b)).map(([, row]) => row);
		}
		lines.style.height = `${sorted.length * tall()}px`;
		scroll.setAttribute("aria-rowcount", String(sorted.length + 1));
		const text = foot?.(rows);
		footer.hidden = !text;
		footer.textContent = text ?? "";
		draw();
	}

	function draw() {
		const line = tall();
		const from = Math.max(0, Math.floor(scroll.scrollTop / line) - SPARE);
		const sight = (scroll.clientHeight || 900) + 2 * SPARE * line;
		const part = sorted.slice(from, from + Math.ceil(sight / line));
		renew(lines, part.map((row, at) => {
			const id = key(row);
			return h("div", {
				key: id,
				class: open ? "cells line opens" : "cells line",
				role: "row",
				id: prefix + (from + at),
				"aria-rowindex": String(from + at + 2),
				"aria-selected": id === selected ? "true" : "false",
				style: { top: `${(from + at) * line}px`, height: narrow.matches ? `${line}px` : null },
			}, columns.map((column) => h("div", { role: "gridcell", class: `${column.num ? "num" : ""}${column.isWide ? " is-wide" : ""}`, "data-title": column.title || null }, column.cell(row))));
		}));
	}

	lines.addEventListener("click", (event) => {
		const line = event.target.closest(".line");
		if (!line || event.target.closest("a, button") || String(getSelection())) return;
		select(Number(line.getAttribute("aria-rowindex")) - 2, true);
	});

	function select(at, opens) {
		const row = sorted[at];
		if (!row) return;
		selected = key(row);
		scroll.setAttribute("aria-activedescendant", prefix + at);
		const line = tall();
		const top = at * line;
		const sight = scroll.clientHeight - titles.offsetHeight;
		if (top < scroll.scrollTop) scroll.scrollTop = top;
		else if (top + line > scroll.scrollTop + sight) scroll.scrollTop = top + line - sight;
		draw();
		if (opens) open?.(row);
	}

	scroll.addEventListener("scroll", framed(draw), { passive: true });
	scroll.addEventListener("keydown", (event) => {
		if (event.target !== scroll) return;
		const at = sorted.findIndex((row) => key(row) === selected);
		const page = Math.max(1, Math.floor(scroll.clientHeight / tall()) - 2);
		const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: sorted.length - 1 }[event.key];
		if (to !== undefined) select(Math.min(sorted.length - 1, Math.max(0, to)), false);
		else if (event.key === "Enter" && at >= 0) select(at, true);
		else return;
		event.preventDefault();
	});
	new ResizeObserver(framed(arrange)).observe(scroll);
	drawTitles();

	return {
		element,
		scroll,
		/** Replaces the rows; the selection stays. `follow`: new rows came at the top, and what is in sight stays in sight. */
		update(next, follow = false) {
			const first = follow && scroll.scrollTop > 0 && rows.length ? next.findIndex((row) => key(row) === key(rows[0])) : 0;
			rows = next;
			arrange();
			if (first > 0) scroll.scrollTop += first * tall();
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
