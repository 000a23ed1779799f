// The keys of the page, shown by `?`.

import { h } from "./dom.js";
import { openDialog } from "./parts.js";

const KEYS = [
	["Everywhere", [["?", "this help"], ["/", "the first field of the view"], ["p", "pause and continue"], ["1 … 9", "the view of this place in the navigation"], ["Tab, Enter", "go through all, and open"]]],
	["Lists", [["↑ ↓ Page Up Page Down Home End", "select"], ["Enter", "opens"]]],
	["Traces over time", [["← →", "select a trace"], ["Enter", "opens it"], ["Escape", "takes a dragged range back"]]],
	["Timeline of a trace", [["↑ ↓", "select"], ["← →", "hide and show what a span called"], ["Enter", "zooms to the span"], ["Escape", "shows all"]]],
	["Map of the timeline", [["← →", "move"], ["+ −", "zoom"], ["Escape", "shows all"]]],
	["Flame graph", [["↑ ↓", "caller, callee"], ["← →", "neighbours"], ["Enter + −", "zoom"], ["Escape", "shows all"]]],
	["Map of durations", [["arrows", "select a cell"], ["Enter", "opens its traces"]]],
	["Curves", [["← →", "move the part, with Shift its end"], ["Escape", "takes all"]]],
	["Treemap", [["arrows", "select"], ["Enter", "opens"], ["Escape", "goes back"]]],
];

export function showHelp() {
	if (document.querySelector("dialog[open]")) return;
	openDialog("Keyboard", () => {},
		h("div", { class: "keys" }, KEYS.map(([title, keys]) => h("section", {}, h("h3", {}, title), h("dl", {}, keys.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]))))),
		h("div", { class: "row" }, h("button", { type: "submit" }, "Close"))).classList.add("help");
}

/** Takes the keys that hold in every view. `views`: the links of the navigation. */
export function listenForKeys(main, views) {
	addEventListener("keydown", (event) => {
		if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.target.closest("input, select, textarea, dialog")) return;
		const place = /^[1-9]$/.test(event.key) ? views[Number(event.key) - 1] : null;
		if (event.key === "?") showHelp();
		else if (event.key === "/") main.querySelector("input[type=search]")?.focus();
		else if (event.key === "p") main.querySelector("[data-pause]")?.click();
		else if (place) place.click();
		else return;
		event.preventDefault();
	});
}
